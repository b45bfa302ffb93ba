#include "core/train/router_override.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;

namespace {

struct Outcome {
  std::string router;
  std::vector<std::string> notes;
};

Outcome override_with(const std::string& stored, const std::string& asked, bool force = false) {
  Outcome outcome;
  const RouterOverride wish{route::parse_router(asked), asked.find("cf=") != std::string::npos};
  outcome.router =
      to_string(override_router(route::parse_router(stored), wish, 8, force, outcome.notes));
  return outcome;
}

std::string error_of(const std::string& stored, const std::string& asked) {
  return test::user_error_of([&] { override_with(stored, asked); });
}

std::string canonical(const std::string& router) { return to_string(route::parse_router(router)); }

}  // namespace

TEST_CASE("rectification and capacity may change freely", "[train]") {
  CHECK(override_with("top1", "top1+ir+fr").router == canonical("top1+ir+fr:cf=1"));
  CHECK(override_with("top1+ir", "top1").router == canonical("top1"));
  CHECK(override_with("top1", "top1:cf=inf").router == canonical("top1:cf=inf"));
  CHECK(override_with("top1", "top1:cf=0.5").notes.empty());
}

TEST_CASE("another k keeps the stored capacity unless one is given, and says so", "[train]") {
  const auto kept = override_with("top1:cf=1.5", "top2");
  CHECK(kept.router == canonical("top2:cf=1.5"));
  REQUIRE(kept.notes.size() == 1);
  CHECK(kept.notes[0] == "note: 2 experts per token instead of the stored 1");
  CHECK(override_with("top1:cf=1.5", "top2:cf=2").router == canonical("top2:cf=2"));
  CHECK(override_with("top1:cf=inf", "top2+ir").router == canonical("top2+ir:cf=inf"));
}

TEST_CASE("top-k and top-p change places with a warning", "[train]") {
  for (const auto& [stored, asked] :
       {std::pair("top2", "topp:0.4"), std::pair("topp:0.4", "top2")}) {
    const auto outcome = override_with(stored, asked);
    CHECK(outcome.router == canonical(asked));
    REQUIRE(outcome.notes.size() == 1);
    CHECK(outcome.notes[0].rfind("warning: router", 0) == 0);
  }
}

TEST_CASE("relu and softmax routers do not change places", "[train]") {
  CHECK(error_of("top1", "relu:k=1").find("the folder was made for top1") != std::string::npos);
  CHECK(error_of("relu:k=1", "topp:0.4").find("upcycle the dense model again") !=
        std::string::npos);
  CHECK(override_with("relu:k=1", "relu:k=2").router == canonical("relu:k=2"));
}

TEST_CASE("another gate norm needs force", "[train]") {
  CHECK(error_of("top1", "top1:gate=none").find("add --force if that is meant") !=
        std::string::npos);
  CHECK(override_with("top1", "top1:gate=none", true).router == canonical("top1:gate=none"));
}

TEST_CASE("k beyond the experts and ranks that do not divide them are errors", "[train]") {
  CHECK_FALSE(error_of("top1", "top9").empty());
  CHECK(test::user_error_of([] { check_ep_ranks(3, 8); }) ==
        "--ep-ranks 3: 8 experts cannot be shared equally; give a divisor of 8");
  CHECK_FALSE(test::user_error_of([] { check_ep_ranks(0, 8); }).empty());
  CHECK_NOTHROW(check_ep_ranks(4, 8));
}
