// Router flags against a stored router, for evaluation and training (core/route/README.md, "Router
// overrides"), and alone.
#include "core/route/router_override.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::route {
namespace {

ResolvedRouter resolve(const std::string& stored, const RouterRequest& given, Purpose purpose,
                       bool force = false) {
  return override_router({parse_router(stored), 8, 8}, given, force, purpose);
}

std::string refusal(const std::string& stored, const std::string& router, Purpose purpose,
                    bool force = false) {
  return test::user_error_of([&] { resolve(stored, {router, "", {}}, purpose, force); });
}

RouterSettings router(const std::string& text) { return parse_router(text); }

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
      CHECK(resolved.router == router(cell.expected));
      REQUIRE(resolved.notes.size() == cell.notes.size());
      for (size_t i = 0; i < cell.notes.size(); ++i) {
        CHECK_THAT(resolved.notes[i], test::contains_text(cell.notes[i]));
      }
    }
  }
}

constexpr auto kEvaluate = Purpose::kEvaluate, kTrain = Purpose::kTrain;

}  // namespace

TEST_CASE("rectification, capacity, order, and p and max of top-p change without a note",
          "[route]") {
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

TEST_CASE("another k, family, gate or no bias is noted", "[route]") {
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

TEST_CASE("another gate needs --force; softmax and ReLU routers never replace each other",
          "[route]") {
  for (const auto purpose : {kEvaluate, kTrain}) {
    for (const auto& [stored, given] :
         {std::pair("top2", "top2:gate=none"), std::pair("top2:gate=none", "top2:gate=selected")}) {
      CHECK_THAT(refusal(stored, given, purpose),
                 test::contains_text("in place of the stored " + to_string(router(stored))) &&
                     test::contains_text("--force"));
    }
    for (const bool force : {false, true}) {
      for (const auto& [stored, given] :
           {std::pair("top1", "relu:k=1"), std::pair("topp:0.4", "relu:k=1"),
            std::pair("relu:k=1", "top1"), std::pair("relu:k=1", "topp:0.4")}) {
        CHECK_THAT(refusal(stored, given, purpose, force),
                   test::contains_text("ReLU and softmax logits"));
      }
    }
  }
}

TEST_CASE("what only training reads changes there, and is ignored with a note at evaluation",
          "[route]") {
  const std::vector<Cell> cells = {
      {"top2", {"top2:st=off", "", {}}, "top2:st=off"},
      {"top2:lb=selected", {"top2:lb=first", "", {}}, "top2"},
      {"relu:k=1", {"relu:k=1,lambda0=0.5", "", {}}, "relu:k=1,lambda0=0.5"},
      {"relu:k=1", {"relu:k=1,mult=1.5", "", {}}, "relu:k=1,mult=1.5"},
      {"relu:k=1", {"relu:k=1,l1=plain", "", {}}, "relu:k=1,l1=plain"}};
  check(cells, {kTrain});
  for (const auto& cell : cells) {
    CHECK(resolve(cell.stored, cell.given, kTrain).names_lambda0 ==
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
  CHECK_THAT(refusal("relu:k=1", "relu:k=9", kEvaluate), test::contains_text("have 8"));
}

TEST_CASE("expert choice may train and is refused for inference", "[route]") {
  check({{"expert-choice", {}, "expert-choice"},
         {"expert-choice", {"", "0.5", {}}, "expert-choice:cf=0.5"}},
        {kTrain});
  check({{"expert-choice", {"top2", "", {}}, "top2", {""}}}, {kEvaluate});
  CHECK_THAT(test::user_error_of([] { resolve("expert-choice", {}, kEvaluate); }),
             test::contains_text("'expert-choice'") && test::contains_text("--router top2"));
  CHECK_FALSE(
      test::user_error_of([] { generation_router(parse_router("expert-choice")); }).empty());
}

TEST_CASE("a router printed in full replaces any of its family", "[route]") {
  const std::vector<std::vector<std::string>> families = {
      {"top1", "top2+ir+fr:cf=inf", "top1:cf=0.5,gate=none,st=off,lb=selected,order=score"},
      {"topp:0.4", "topp:0.7,max=2"},
      {"relu:k=1", "relu:k=2,lambda0=1e-06,mult=1.5,l1=plain"}};
  for (const auto& family : families) {
    for (const auto& stored : family) {
      for (const auto& wanted : family) {
        CAPTURE(stored, wanted);
        const std::string text = to_full_string(router(wanted));
        CHECK(resolve(stored, {text, "", {}}, kTrain, true).router == router(wanted));
      }
    }
  }
}

TEST_CASE("a gate_scale made for the stored gates is warned of when other gates replace them",
          "[route]") {
  const auto notes = [](const std::string& stored, const std::string& given, double scale) {
    return override_router({parse_router(stored), 8, 8, scale}, {given, "", {}}, true, kEvaluate)
        .notes;
  };
  CHECK(notes("topp:0.4", "topp:0.3", 1.0).empty());
  CHECK(notes("top1:gate=none", "top1+ir:gate=none", 1.5).empty());
  const auto warned = notes("topp:0.4", "topp:0.3", 1.5);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], test::contains_text("warning: ") && test::contains_text("gate_scale 1.5"));
  CHECK(notes("topp:0.4", "top1", 1.5).size() == 2);  // also the warning of another family
}

TEST_CASE("without a folder the flags alone make the router", "[route]") {
  const auto fallback = parse_router("top2:cf=inf");
  CHECK(requested_router({}, fallback) == fallback);
  CHECK(requested_router({"top1+ir", "", {}}, fallback) == parse_router("top1+ir:cf=1"));
  CHECK(requested_router({"", "0.5", {}}, fallback) == parse_router("top2:cf=0.5"));
}

TEST_CASE("impossible router flags are refused by name", "[route]") {
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
    CHECK_THAT(test::user_error_of([&, &s = stored, &g = given] { resolve(s, g, kEvaluate); }),
               test::contains_text(fact));
  }
}

}  // namespace moe::route
