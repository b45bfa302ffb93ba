// Parsing and printing of --router and of the JSON form, and all error messages.

#include <string>
#include <utility>
#include <vector>

#include "core/route/router.h"
#include "core/route/router_override.h"
#include "tests/support/user_error.h"

namespace moe::route {
namespace {

using namespace moe::test;

const std::vector<std::string> kCanonical = {
    "top1",
    "top2+ir",
    "top1+fr",
    "top1+ir+fr:cf=0.5",
    "top1:cf=inf,gate=none,lb=selected",
    "top2:cf=2.2,st=off,order=score",
    "topp:0.4",
    "topp:0.4,max=2",
    "relu:k=1",
    "relu:k=2,lambda0=1e-06,mult=1.5,l1=plain",
    "expert-choice",
    "expert-choice:cf=0.5",
};

ResolvedRouter resolve(const std::string& stored, const RouterRequest& given, Purpose purpose,
                       bool force = false) {
  return override_router({parse_router(stored), 8, 8}, given, force, purpose);
}

std::string refusal(const std::string& stored, const std::string& router, Purpose purpose,
                    bool force = false) {
  return user_error_of([&] { resolve(stored, {router, "", {}}, purpose, force); });
}

// A stored router and flags. `expected` is the resulting router, `notes` has a fact of each note.
struct Cell {
  std::string stored;
  RouterRequest given;
  std::string expected;
  std::vector<std::string> notes = {};
  bool force = false;
};

void check(const std::vector<Cell>& cells, std::initializer_list<Purpose> purposes) {
  for (const auto& cell : cells) {
    for (const auto purpose : purposes) {
      CAPTURE(cell.stored, cell.given.router, cell.given.cf, static_cast<int>(purpose));
      const ResolvedRouter resolved = resolve(cell.stored, cell.given, purpose, cell.force);
      CHECK(resolved.router == parse_router(cell.expected));
      REQUIRE(resolved.notes.size() == cell.notes.size());
      for (size_t i = 0; i < cell.notes.size(); ++i) {
        CHECK_THAT(resolved.notes[i], contains_text(cell.notes[i]));
      }
    }
  }
}

constexpr auto kEvaluate = Purpose::kEvaluate, kTrain = Purpose::kTrain;

TEST_CASE("a canonical router parses to settings that print as the same text") {
  for (const auto& text : kCanonical) {
    INFO(text);
    const RouterSettings settings = parse_router(text);
    CHECK(to_string(settings) == text);
    CHECK(parse_router(to_string(settings)) == settings);
    CHECK(router_from_json(Json(to_json(settings)), "config.json") == settings);
  }
}

TEST_CASE("many spellings of a router have one canonical form") {
  const std::vector<std::pair<std::string, std::string>> spellings = {
      {"TOP1+FR+IR", "top1+ir+fr"},
      {"Top2:CF=2.0", "top2"},
      {"top1:st=on,order=choice,lb=first,gate=selected", "top1"},
      {"top1:cf=INF", "top1:cf=inf"},
      {"RELU:K=1,L1=Refined", "relu:k=1"},
      {"Expert-Choice:CF=0.5", "expert-choice:cf=0.5"},
      {"relu:mult=1.2,k=3", "relu:k=3"},
      {"TOPP:0.40", "topp:0.4"},
      {"top2:bias=1e-3", "top2:bias=0.001"},
  };
  for (const auto& [written, canonical] : spellings) {
    CHECK(to_string(parse_router(written)) == canonical);
  }
}

TEST_CASE("the default capacity factor of top-k is k and cf=inf means dropless") {
  CHECK(parse_router("top1").capacity_factor == 1.0);
  CHECK(parse_router("top3+fr").capacity_factor == 3.0);
  CHECK_FALSE(parse_router("top2:cf=inf").capacity_factor.has_value());
  CHECK(to_json(parse_router("top2:cf=inf"))["capacity_factor"].is_null());
  CHECK(parse_router("topp:0.4").lb_count == LbCount::kSelected);
}

TEST_CASE("a broken router text names the part that is wrong and what is known") {
  const std::vector<std::pair<std::string, std::string>> errors = {
      {"top1+ri", "unknown modifier '+ri', did you mean '+ir'? Known: +ir, +fr"},
      {"top1+ir+ir", "'+ir' is given twice, give it once"},
      {"tpo1", "unknown router 'tpo1', did you mean 'top1'? Known forms: top1, "},
      {"", "unknown router ''"},
      {"top", "'top' needs a whole number of experts per token, e.g. top1 or top2, not 'top'"},
      {"top0", "k must be a whole number from 1 to the number of experts, is 0"},
      {"top1:gat=none", "did you mean 'gate'? Known: cf, gate, st, lb, order"},
      {"top1:cf=1,cf=1", "'cf' is given twice"},
      {"top1:cf", "'cf' is not understood, 'cf=' takes a number above 0, or inf"},
      {"top1:cf=0", "the capacity factor cf must be above 0 and at most 1048576, is 0"},
      {"top1:gate=all", "'gate=all' is not understood, 'gate=' takes selected or none"},
      {"top1:bias=on", "'bias=on' is not understood, 'bias=' takes a number from 0 to 1"},
      {"top1:bias=-0.001", "bias must be a number from 0 to 1, is -0.001"},
      {"topp:0.4,bias=0.001", "unknown option 'bias=0.001'"},
      {"topp", "'topp' needs the probability to reach, from 0 to 1, e.g. topp:0.4"},
      {"topp:1.5", "p must be a number from 0 to 1, is 1.5"},
      {"topp:0.4,max=0", "max must be a whole number from 1 to the number of experts, is 0"},
      {"topp:0.4,mx=2", "unknown option 'mx=2', did you mean 'max'? Known: max"},
      {"topp+ir:0.4", "'topp' has no modifiers"},
      {"expert-choice+ir", "'expert-choice' has no modifiers"},
      {"expert-choise", "did you mean 'expert-choice'?"},
      {"relu", "'relu' needs k, which sets the target sparsity 1 - k/E, e.g. relu:k=1"},
      {"relu:k=1,mult=0.5", "mult must be a number from 1, is 0.5"},
  };
  for (const auto& [text, words] : errors) {
    const std::string message = user_error_of([&text = text] { parse_router(text); });
    INFO(text << " -> " << message);
    CHECK(message.rfind("--router '" + text + "': ", 0) == 0);
    CHECK_THAT(message, contains_text(words));
  }
}

TEST_CASE("the JSON form has the keys of the format in their order") {
  CHECK(
      to_json(parse_router("top1+ir+fr")).dump() ==
      R"({"family":"topk","k":1,"ir":true,"fr":true,"capacity_factor":1.0,"gate_norm":"selected",)"
      R"("straight_through":true,"lb_count":"first","slot_order":"choice","bias_rate":null,)"
      R"("p":null,)"
      R"("max_experts":null,"lambda0":null,"lambda_multiplier":null,"l1":null})");
  CHECK(router_from_json(Json::parse(R"({"family":"topk","k":2,"capacity_factor":null})"), "c") ==
        parse_router("top2:cf=inf"));
}

TEST_CASE("a broken router object names the file and the key") {
  const std::vector<std::pair<std::string, std::string>> errors = {
      {R"([])", "the router is not an object"},
      {R"({"family":"topq"})",
       "router family 'topq' is unknown, known: topk, topp, relu, expert_choice"},
      {R"({"family":"topk","k":1})",
       "'capacity_factor' is missing; give a number above 0, or null"},
      {R"({"family":"topk","k":1,"capacity_factor":-1})", "cf must be above 0"},
      {R"({"family":"topk","k":1,"capacity_factor":1,"gate_norm":"softmax"})",
       "'gate_norm' is 'softmax', known: selected, none"},
      {R"({"family":"topk","k":1,"capcity_factor":1})",
       "unknown router key 'capcity_factor', did you mean 'capacity_factor'? Known: family, k"},
      {R"({"family":"topp"})", "p"},
      {R"({"family":"topp","p":2})", "p must be a number from 0 to 1"},
      {R"({"family":"topp","p":0.4,"ir":true})", "'ir' and 'fr' belong to the topk family only"},
      {R"({"family":"relu","k":1,"l1":"none"})", "'l1' is 'none', known: refined, plain"},
  };
  for (const auto& [text, words] : errors) {
    const Json json = Json::parse(text);
    const std::string message =
        user_error_of([&json] { router_from_json(json, "config.json: moe.router"); });
    INFO(text << " -> " << message);
    CHECK(message.rfind("config.json: moe.router", 0) == 0);
    CHECK_THAT(message, contains_text(words));
  }
}

TEST_CASE("a router must fit the number of experts") {
  CHECK_NOTHROW(check_router(parse_router("top4+fr"), 4));
  for (const char* router : {"top5", "relu:k=5", "topp:0.4,max=5", "expert-choice:cf=5"}) {
    CHECK_THAT(user_error_of([&] { check_router(parse_router(router), 4); }),
               contains_text(router) && contains_text("4"));
  }
}

TEST_CASE("default coefficients are those of the papers") {
  CHECK(default_lb_coef(parse_router("top2+ir")) == 1e-2);
  CHECK(default_lb_coef(parse_router("top2+ir:bias=0.001")) == 0);
  CHECK(default_lb_coef(parse_router("topp:0.4")) == 1e-2);
  CHECK(default_lb_coef(parse_router("relu:k=1")) == 0);
  CHECK(default_lb_coef(parse_router("expert-choice")) == 0);
  CHECK(default_entropy_coef(parse_router("topp:0.4")) == 1e-4);
  CHECK(default_entropy_coef(parse_router("top1")) == 0);
}

TEST_CASE("preserves_function() predicts if a mixture equals its dense parent") {
  for (const char* exact : {"top1+ir", "top2+ir+fr:cf=0.25", "top2:cf=inf"}) {
    CHECK(preserves_function(parse_router(exact)).exact);
  }
  for (const char* other :
       {"top1", "top1:cf=inf,gate=none", "topp:0.4", "relu:k=1", "expert-choice"}) {
    CHECK_FALSE(preserves_function(parse_router(other)).exact);
  }
  CHECK_THAT(preserves_function(parse_router("top1")).words, contains_text("residual only"));
}

// Router flags against a stored router, for evaluation and training (core/route/README.md, "Router
// overrides"), and alone.

TEST_CASE("rectification, capacity, order, and p and max of top-p change without a note") {
  check({{"top2+ir:cf=0.5", {}, "top2+ir:cf=0.5"},
         {"top1", {"top1+ir", "", {}}, "top1+ir"},
         {"top2+ir+fr:cf=1.5", {"top2", "", {}}, "top2:cf=1.5"},
         {"top1+ir", {"top1+fr", "", {}}, "top1+fr"},
         {"top1", {"top1:cf=0.25", "", {}}, "top1:cf=0.25"},
         {"top1", {"", "3", {}}, "top1:cf=3"},
         {"top1", {"top1:cf=2", "2.0", {}}, "top1:cf=2"},  // equal values
         {"top2+ir", {"", "inf", {}}, "top2+ir:cf=inf"},
         {"top2:cf=inf", {"", "0.5", {}}, "top2:cf=0.5"},
         {"top2", {"top2:order=score", "", {}}, "top2:order=score"},
         {"top2:order=score", {"top2:order=choice", "", {}}, "top2"},
         {"topp:0.4", {"topp:0.7", "", {}}, "topp:0.7"},
         {"topp:0.4", {"topp:0.4,max=2", "", {}}, "topp:0.4,max=2"},
         {"topp:0.4,max=2", {"topp:0.4", "", {}}, "topp:0.4"},
         {"top2:cf=inf,gate=none,order=score,st=off,lb=selected",  // the rest stays as stored
          {"top2", "", {}},
          "top2:cf=inf,gate=none,order=score,st=off,lb=selected"},
         {"top2:bias=0.001", {"", "2", {}}, "top2:cf=2,bias=0.001"},
         {"top2", {"top2:bias=0.01", "", {}}, "top2:bias=0.01"}},
        {kEvaluate, kTrain});
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const ResolvedRouter resolved = resolve("top1+ir", {"", "", ranks}, kEvaluate);
    CHECK(resolved.ep_ranks == ranks);
    CHECK(resolved.notes.empty());
  }
  CHECK(resolve("top1", {}, kTrain).ep_ranks == 8);
}

TEST_CASE("another k, family, gate or no bias is noted") {
  const std::string sums = "weights that sum to another value";
  check({{"top1", {"top2", "", {}}, "top2:cf=1", {"top2:cf=1 in place of the stored top1"}},
         {"top2:cf=inf", {"top1", "", {}}, "top1:cf=inf", {"k was 2"}},
         {"top1", {"top2", "2.5", {}}, "top2:cf=2.5", {"k was 1"}},
         {"top2:bias=0.001", {"top2+ir", "", {}}, "top2+ir", {"bias was 0.001"}},
         {"top2", {"topp:0.4", "", {}}, "topp:0.4", {sums}},
         {"topp:0.4,max=2", {"top1+ir:cf=2", "", {}}, "top1+ir:cf=2", {sums}},
         {"top2", {"top2:gate=none", "", {}}, "top2:gate=none", {"warning: "}, /*force=*/true},
         {"top2:gate=none", {"top2:gate=selected", "", {}}, "top2", {"warning: "}, true},
         {"top1", {"top1+fr:cf=inf", "", {}}, "top1+fr:cf=inf", {"this is top-2"}}},
        {kEvaluate, kTrain});
}

TEST_CASE("another gate needs --force; softmax and ReLU routers never replace each other") {
  for (const auto purpose : {kEvaluate, kTrain}) {
    for (const auto& [stored, given] :
         {std::pair("top2", "top2:gate=none"), std::pair("top2:gate=none", "top2:gate=selected")}) {
      CHECK_THAT(refusal(stored, given, purpose),
                 contains_text("in place of the stored " + to_string(parse_router(stored))) &&
                     contains_text("--force"));
    }
    for (const bool force : {false, true}) {
      for (const auto& [stored, given] :
           {std::pair("top1", "relu:k=1"), std::pair("topp:0.4", "relu:k=1"),
            std::pair("relu:k=1", "top1"), std::pair("relu:k=1", "topp:0.4")}) {
        CHECK_THAT(refusal(stored, given, purpose, force),
                   contains_text("ReLU and softmax logits"));
      }
    }
  }
}

TEST_CASE("training-only options are ignored with a note at evaluation") {
  const std::vector<Cell> cells = {
      {"top2", {"top2:st=off", "", {}}, "top2:st=off"},
      {"top2:lb=selected", {"top2:lb=first", "", {}}, "top2"},
      {"relu:k=1", {"relu:k=1,lambda0=0.5", "", {}}, "relu:k=1,lambda0=0.5"},
      {"relu:k=1", {"relu:k=1,mult=1.5", "", {}}, "relu:k=1,mult=1.5"},
      {"relu:k=1", {"relu:k=1,l1=plain", "", {}}, "relu:k=1,l1=plain"}};
  check(cells, {kTrain});
  for (const auto& cell : cells) {
    CHECK(resolve(cell.stored, cell.given, kTrain).sets_lambda0 ==
          (cell.given.router.find("lambda0") != std::string::npos));
    check({{cell.stored, cell.given, cell.stored, {"in training only, ignored here"}}},
          {kEvaluate});
  }
  check({{"top1", {"top1:st=off,lb=selected", "", {}}, "top1", {"st, lb matter in training only"}},
         {"relu:k=1", {"relu:k=2", "", {}}, "relu:k=1", {"k matters in training only"}}},
        {kEvaluate});
  check({{"relu:k=1", {"relu:k=2", "", {}}, "relu:k=2", {"k changes the target sparsity"}},
         {"relu:k=1,lambda0=0.5,mult=1.5,l1=plain",
          {"relu:k=2", "", {}},
          "relu:k=2,lambda0=0.5,mult=1.5,l1=plain",
          {"k changes the target sparsity"}}},
        {kTrain});
  CHECK_THAT(refusal("relu:k=1", "relu:k=9", kEvaluate), contains_text("have 8"));
}

TEST_CASE("expert choice may train and is refused for inference") {
  check({{"expert-choice", {}, "expert-choice"},
         {"expert-choice", {"", "0.5", {}}, "expert-choice:cf=0.5"}},
        {kTrain});
  check({{"expert-choice", {"top2", "", {}}, "top2", {""}}}, {kEvaluate});
  CHECK_THAT(user_error_of([] { resolve("expert-choice", {}, kEvaluate); }),
             contains_text("'expert-choice'") && contains_text("--router top2"));
  CHECK_FALSE(user_error_of([] { generation_router(parse_router("expert-choice")); }).empty());
}

TEST_CASE("a router printed in full replaces any of its family") {
  const std::vector<std::vector<std::string>> families = {
      {"top1", "top2+ir+fr:cf=inf", "top1:cf=0.5,gate=none,st=off,lb=selected,order=score"},
      {"topp:0.4", "topp:0.7,max=2"},
      {"relu:k=1", "relu:k=2,lambda0=1e-06,mult=1.5,l1=plain"}};
  for (const auto& family : families) {
    for (const auto& stored : family) {
      for (const auto& wanted : family) {
        CAPTURE(stored, wanted);
        const std::string text = to_string(parse_router(wanted), /*every_option=*/true);
        CHECK(resolve(stored, {text, "", {}}, kTrain, true).router == parse_router(wanted));
      }
    }
  }
}

TEST_CASE("replacing gates that have a gate_scale gives a warning") {
  const auto notes = [](const std::string& stored, const std::string& given, double scale) {
    return override_router({parse_router(stored), 8, 8, scale}, {given, "", {}}, true, kEvaluate)
        .notes;
  };
  CHECK(notes("topp:0.4", "topp:0.3", 1.0).empty());
  CHECK(notes("top1:gate=none", "top1+ir:gate=none", 1.5).empty());
  const auto warned = notes("topp:0.4", "topp:0.3", 1.5);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], contains_text("warning: ") && contains_text("gate_scale 1.5"));
  CHECK(notes("topp:0.4", "top1", 1.5).size() == 2);  // also the warning of another family
}

TEST_CASE("without a folder the flags alone make the router") {
  const auto fallback = parse_router("top2:cf=inf");
  CHECK(requested_router({}, fallback) == fallback);
  CHECK(requested_router({"top1+ir", "", {}}, fallback) == parse_router("top1+ir:cf=1"));
  CHECK(requested_router({"", "0.5", {}}, fallback) == parse_router("top2:cf=0.5"));
}

TEST_CASE("impossible router flags are refused by name") {
  struct Case {
    std::string stored;
    RouterRequest given;
    std::string fact;
  };
  std::vector<Case> cases = {
      {"top1", {"top1:cf=1", "2", {}}, "--cf 2 contradicts --router top1:cf=1"},
      {"topp:0.4", {"", "1", {}}, "--cf 1: only top-k"},
      {"top1", {"", "", 3}, "--ep-ranks 3 does not divide the 8 experts"},
      {"top1", {"", "", 0}, "--ep-ranks 0 does not divide the 8 experts"},
      {"top1", {"top9", "", {}}, "have 8"}};
  for (const char* cf : {"0", "-1", "nan", "x", "1,gate=none"}) {
    cases.push_back({"top1", {"", cf, {}}, fmt::format("--cf '{}'", cf)});
  }
  for (const auto& [stored, given, fact] : cases) {
    CAPTURE(given.router, given.cf);
    CHECK_THAT(user_error_of([&, &s = stored, &g = given] { resolve(s, g, kEvaluate); }),
               contains_text(fact));
  }
}

}  // namespace
}  // namespace moe::route
