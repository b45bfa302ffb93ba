// Parsing and printing of --router and of the JSON form, and all error messages.

#include <string>
#include <utility>
#include <vector>

#include "core/route/router.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::route {
namespace {

using test::user_error_of;

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

}  // namespace

TEST_CASE("a canonical router parses to settings that print as the same text", "[route]") {
  for (const auto& text : kCanonical) {
    INFO(text);
    const RouterSettings settings = parse_router(text);
    CHECK(to_string(settings) == text);
    CHECK(parse_router(to_string(settings)) == settings);
    CHECK(router_from_json(Json(to_json(settings)), "config.json") == settings);
  }
}

TEST_CASE("many spellings of a router have one canonical form", "[route]") {
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

TEST_CASE("the default capacity factor of top-k is k and cf=inf means dropless", "[route]") {
  CHECK(parse_router("top1").capacity_factor == 1.0);
  CHECK(parse_router("top3+fr").capacity_factor == 3.0);
  CHECK_FALSE(parse_router("top2:cf=inf").capacity_factor.has_value());
  CHECK(to_json(parse_router("top2:cf=inf"))["capacity_factor"].is_null());
  CHECK(parse_router("topp:0.4").lb_count == LbCount::kSelected);
}

TEST_CASE("a broken router text names the part that is wrong and what is known", "[route]") {
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
    CHECK_THAT(message, test::contains_text(words));
  }
}

TEST_CASE("the JSON form has the keys of the format in their order", "[route]") {
  CHECK(
      to_json(parse_router("top1+ir+fr")).dump() ==
      R"({"family":"topk","k":1,"ir":true,"fr":true,"capacity_factor":1.0,"gate_norm":"selected",)"
      R"("straight_through":true,"lb_count":"first","slot_order":"choice","bias_rate":null,)"
      R"("p":null,)"
      R"("max_experts":null,"lambda0":null,"lambda_multiplier":null,"l1":null})");
  CHECK(router_from_json(Json::parse(R"({"family":"topk","k":2,"capacity_factor":null})"), "c") ==
        parse_router("top2:cf=inf"));
}

TEST_CASE("a broken router object names the file and the key", "[route]") {
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
    CHECK_THAT(message, test::contains_text(words));
  }
}

TEST_CASE("a router must fit the number of experts", "[route]") {
  CHECK_NOTHROW(check_router(parse_router("top4+fr"), 4));
  for (const char* router : {"top5", "relu:k=5", "topp:0.4,max=5", "expert-choice:cf=5"}) {
    CHECK_THAT(user_error_of([&] { check_router(parse_router(router), 4); }),
               test::contains_text(router) && test::contains_text("4"));
  }
}

TEST_CASE("default coefficients are those of the papers", "[route]") {
  CHECK(default_lb_coef(parse_router("top2+ir")) == 1e-2);
  CHECK(default_lb_coef(parse_router("top2+ir:bias=0.001")) == 0);
  CHECK(default_lb_coef(parse_router("topp:0.4")) == 1e-2);
  CHECK(default_lb_coef(parse_router("relu:k=1")) == 0);
  CHECK(default_lb_coef(parse_router("expert-choice")) == 0);
  CHECK(default_entropy_coef(parse_router("topp:0.4")) == 1e-4);
  CHECK(default_entropy_coef(parse_router("top1")) == 0);
}

TEST_CASE("a router says whether it keeps the function of an upcycled parent", "[route]") {
  CHECK(preserves_function(parse_router("top1+ir")).exact);
  CHECK(preserves_function(parse_router("top2+ir+fr:cf=0.25")).exact);
  CHECK(preserves_function(parse_router("top2:cf=inf")).exact);
  const FunctionPreservation plain = preserves_function(parse_router("top1"));
  CHECK_FALSE(plain.exact);
  CHECK(plain.words.find("residual only") != std::string::npos);
  CHECK_FALSE(preserves_function(parse_router("top1:cf=inf,gate=none")).exact);
  CHECK_FALSE(preserves_function(parse_router("topp:0.4")).exact);
  CHECK_FALSE(preserves_function(parse_router("relu:k=1")).exact);
  CHECK_FALSE(preserves_function(parse_router("expert-choice")).exact);
}

}  // namespace moe::route
