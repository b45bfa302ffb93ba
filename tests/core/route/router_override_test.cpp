// Router flags against a stored router (core/route/README.md, "Router overrides"), and alone.
#include "core/route/router_override.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::route {
namespace {

StoredRouter stored(const std::string& router) { return {parse_router(router), 8, 8}; }

std::string canonical(const std::string& text) { return to_string(parse_router(text)); }

ResolvedRouter resolve(const std::string& folder, const RouterRequest& given, bool force = false) {
  return override_router(stored(folder), given, force, Purpose::kEvaluate);
}

// Returns the resulting router, or the error.
std::string result(const std::string& folder, const RouterRequest& given, bool force = false) {
  std::string router;
  const std::string complaint =
      test::user_error_of([&] { router = to_string(resolve(folder, given, force).router); });
  return complaint.empty() ? router : complaint;
}

size_t notes(const std::string& folder, const RouterRequest& given, bool force = false) {
  return resolve(folder, given, force).notes.size();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("without flags the folder's router stands", "[route]") {
  const ResolvedRouter resolved = resolve("top2+ir:cf=0.5", {});
  CHECK(to_string(resolved.router) == canonical("top2+ir:cf=0.5"));
  CHECK(resolved.ep_ranks == 8);
  CHECK(resolved.notes.empty());
}

TEST_CASE("rectification, capacity and ranks may change in silence", "[route]") {
  CHECK(result("top1:cf=0.5", {"top1+ir+fr", "", {}}) ==
        canonical("top1+ir+fr:cf=0.5"));  // cf is kept
  CHECK(result("top1+ir:cf=0.5", {"top1:cf=2", "", {}}) == canonical("top1:cf=2"));
  CHECK(result("top1", {"", "0.25", {}}) == canonical("top1:cf=0.25"));
  CHECK(result("top1", {"", "inf", {}}) == canonical("top1:cf=inf"));
  CHECK(result("top1", {"top1:cf=2", "2.0", {}}) ==
        canonical("top1:cf=2"));  // given twice with equal values
  CHECK(notes("top1", {"top1+ir:cf=3", "", 4}) == 0);
  CHECK(resolve("top1", {"", "", 4}).ep_ranks == 4);
  CHECK(result("top2", {"top2:order=score", "", {}}) == canonical("top2:order=score"));
}

TEST_CASE("options that --router does not name stay as stored", "[route]") {
  CHECK(result("top2:cf=inf,gate=none,order=score,st=off,lb=selected", {"top2", "", {}}) ==
        canonical("top2:cf=inf,gate=none,order=score,st=off,lb=selected"));
}

TEST_CASE("another k is allowed with a note, and keeps the capacity factor", "[route]") {
  CHECK(result("top1:cf=1", {"top2", "", {}}) == canonical("top2:cf=1"));
  CHECK(notes("top1:cf=1", {"top2", "", {}}) == 1);
}

TEST_CASE("top-k and top-p may stand in for each other with a note", "[route]") {
  CHECK(result("top2", {"topp:0.4", "", {}}) == canonical("topp:0.4"));
  CHECK(notes("top2", {"topp:0.4", "", {}}) == 1);
  CHECK(notes("topp:0.4", {"topp:0.3,max=2", "", {}}) == 0);
  CHECK(result("topp:0.4", {"top2:cf=1.5", "", {}}) == canonical("top2:cf=1.5"));
}

TEST_CASE("another gate needs force", "[route]") {
  CHECK(contains(result("top2", {"top2:gate=none", "", {}}), "add --force if that is meant"));
  CHECK(result("top2", {"top2:gate=none", "", {}}, true) == canonical("top2:gate=none"));
  CHECK(notes("top2", {"top2:gate=none", "", {}}, true) == 1);
}

TEST_CASE("relu and softmax routers do not stand in for each other", "[route]") {
  CHECK(contains(result("top1", {"relu:k=1", "", {}}, true),
                 "ReLU and softmax logits mean different things"));
  CHECK(contains(result("relu:k=1", {"top1", "", {}}, true),
                 "ReLU and softmax logits mean different things"));
  CHECK(notes("relu:k=1", {"relu:k=2", "", {}}) == 1);
  const auto trained =
      override_router(stored("relu:k=1"), {"relu:k=2", "", {}}, false, Purpose::kTrain);
  REQUIRE(trained.notes.size() == 1);
  CHECK(contains(trained.notes[0], "k changes the target sparsity"));
}

TEST_CASE("without a folder the flags alone make the router", "[route]") {
  const auto fallback = parse_router("top2:cf=inf");
  CHECK(requested_router({}, fallback) == fallback);
  CHECK(requested_router({"top1+ir", "", {}}, fallback) == parse_router("top1+ir:cf=1"));
  CHECK(requested_router({"", "0.5", {}}, fallback) == parse_router("top2:cf=0.5"));
}

TEST_CASE("what cannot be is refused", "[route]") {
  CHECK(result("top1", {"top1:cf=1", "2", {}}) ==
        "--cf 2 contradicts --router top1:cf=1; give one of them");
  CHECK(contains(result("topp:0.4", {"", "1", {}}),
                 "--cf 1: only top-k and expert-choice routers have a capacity"));
  for (const char* cf : {"0", "-1", "nan", "x", "1,gate=none"}) {
    CHECK(result("top1", {"", cf, {}}) ==
          fmt::format("--cf '{}' is not a positive number or 'inf'", cf));
  }
  CHECK(result("top1", {"", "", 3}) == "--ep-ranks 3 does not divide the 8 experts; use a divisor");
  CHECK(result("top1", {"", "", 0}) == "--ep-ranks 0 does not divide the 8 experts; use a divisor");
  CHECK_FALSE(result("top1", {"top9", "", {}}).empty());
  CHECK(contains(result("top1", {"top9", "", {}}), "8"));
}

TEST_CASE("dropless fill-in says that it is the next top-k", "[route]") {
  CHECK(resolve("top1", {"top1+fr:cf=inf", "", {}}).notes ==
        std::vector<std::string>{"without a capacity +fr accepts every request: this is top-2"});
}

}  // namespace
}  // namespace moe::route
