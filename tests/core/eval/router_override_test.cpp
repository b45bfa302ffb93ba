// Every row of SPEC section 10's table of overrides.
#include "core/eval/router_override.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

model::ModelConfig stored(const std::string& router) {
  model::ModelConfig config;
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->ep_ranks = 8;
  config.moe->router = route::parse_router(router);
  return config;
}

std::string canonical(const std::string& text) {
  return route::to_string(route::parse_router(text));
}

// The router that results, or the complaint.
std::string result(const std::string& folder, const RouterOverride& given) {
  std::string router;
  const std::string complaint = test::user_error_of(
      [&] { router = route::to_string(resolve_router(stored(folder), given).router); });
  return complaint.empty() ? router : complaint;
}

size_t notes(const std::string& folder, const RouterOverride& given) {
  return resolve_router(stored(folder), given).notes.size();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("without flags the folder's router stands", "[eval]") {
  const ResolvedRouter resolved = resolve_router(stored("top2+ir:cf=0.5"), {});
  CHECK(route::to_string(resolved.router) == canonical("top2+ir:cf=0.5"));
  CHECK(resolved.ep_ranks == 8);
  CHECK(resolved.notes.empty());
}

TEST_CASE("rectification, capacity and ranks may change in silence", "[eval]") {
  CHECK(result("top1:cf=0.5", {"top1+ir+fr", "", {}, false}) ==
        canonical("top1+ir+fr:cf=0.5"));  // cf is kept
  CHECK(result("top1+ir:cf=0.5", {"top1:cf=2", "", {}, false}) == canonical("top1:cf=2"));
  CHECK(result("top1", {"", "0.25", {}, false}) == canonical("top1:cf=0.25"));
  CHECK(result("top1", {"", "inf", {}, false}) == canonical("top1:cf=inf"));
  CHECK(result("top1", {"top1:cf=2", "2.0", {}, false}) ==
        canonical("top1:cf=2"));  // said twice, the same
  CHECK(notes("top1", {"top1+ir:cf=3", "", 4, false}) == 0);
  CHECK(resolve_router(stored("top1"), {"", "", 4, false}).ep_ranks == 4);
  CHECK(result("top2", {"top2:order=score", "", {}, false}) == canonical("top2:order=score"));
}

TEST_CASE("options that --router does not name stay as stored", "[eval]") {
  CHECK(result("top2:cf=inf,gate=none,order=score,st=off,lb=selected", {"top2", "", {}, false}) ==
        canonical("top2:cf=inf,gate=none,order=score,st=off,lb=selected"));
}

TEST_CASE("another k is allowed with a note, and keeps the capacity factor", "[eval]") {
  CHECK(result("top1:cf=1", {"top2", "", {}, false}) == canonical("top2:cf=1"));
  CHECK(notes("top1:cf=1", {"top2", "", {}, false}) == 1);
}

TEST_CASE("top-k and top-p may stand in for each other with a note", "[eval]") {
  CHECK(result("top2", {"topp:0.4", "", {}, false}) == canonical("topp:0.4"));
  CHECK(notes("top2", {"topp:0.4", "", {}, false}) == 1);
  CHECK(notes("topp:0.4", {"topp:0.3,max=2", "", {}, false}) == 0);
  CHECK(result("topp:0.4", {"top2:cf=1.5", "", {}, false}) == canonical("top2:cf=1.5"));
}

TEST_CASE("another gate needs force", "[eval]") {
  CHECK(
      contains(result("top2", {"top2:gate=none", "", {}, false}), "add --force if that is meant"));
  CHECK(result("top2", {"top2:gate=none", "", {}, true}) == canonical("top2:gate=none"));
  CHECK(notes("top2", {"top2:gate=none", "", {}, true}) == 1);
}

TEST_CASE("relu and softmax routers do not stand in for each other", "[eval]") {
  CHECK(contains(result("top1", {"relu:k=1", "", {}, true}),
                 "ReLU and softmax logits mean different things"));
  CHECK(contains(result("relu:k=1", {"top1", "", {}, true}),
                 "ReLU and softmax logits mean different things"));
  CHECK(notes("relu:k=1", {"relu:k=2", "", {}, false}) == 1);
}

TEST_CASE("what cannot be is refused", "[eval]") {
  CHECK(result("top1", {"top1:cf=1", "2", {}, false}) ==
        "--cf 2 contradicts --router top1:cf=1; give one of them");
  CHECK(contains(result("topp:0.4", {"", "1", {}, false}),
                 "--cf 1: only top-k routers have a capacity"));
  for (const char* cf : {"0", "-1", "nan", "x", "1,gate=none"}) {
    CHECK(result("top1", {"", cf, {}, false}) ==
          fmt::format("--cf '{}' is not a positive number or 'inf'", cf));
  }
  CHECK(result("top1", {"", "", 3, false}) ==
        "--ep-ranks 3 does not divide the 8 experts; use a divisor");
  CHECK(result("top1", {"", "", 0, false}) ==
        "--ep-ranks 0 does not divide the 8 experts; use a divisor");
  CHECK_FALSE(result("top1", {"top9", "", {}, false}).empty());
  CHECK(contains(result("top1", {"top9", "", {}, false}), "8"));
  CHECK(test::user_error_of([] {
          resolve_router({}, {"top1", "", {}, false});
        }) == "this model is dense, it has no router; leave out --router, --cf and --ep-ranks");
  CHECK(test::user_error_of([] { resolve_router({}, {}); }).empty());
}

TEST_CASE("dropless fill-in says that it is the next top-k", "[eval]") {
  CHECK(resolve_router(stored("top1"), {"top1+fr:cf=inf", "", {}, false}).notes ==
        std::vector<std::string>{"without a capacity +fr accepts every request: this is top-2"});
}

}  // namespace
}  // namespace moe::eval
