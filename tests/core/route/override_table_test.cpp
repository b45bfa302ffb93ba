// Every cell of the table "Router overrides" (core/route/README.md), for evaluation and training:
// resulting router and notes. router_override_test.cpp covers the flags.
#include "core/route/router_override.h"
#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::route {
namespace {

constexpr Purpose kBoth[] = {Purpose::kEvaluate, Purpose::kTrain};

ResolvedRouter resolve(const std::string& stored, const RouterRequest& given, Purpose purpose,
                       bool force = false) {
  return override_router({parse_router(stored), 8, 8}, given, force, purpose);
}

std::string refusal(const std::string& stored, const std::string& router, Purpose purpose,
                    bool force = false) {
  return test::user_error_of([&] { resolve(stored, {router, "", {}}, purpose, force); });
}

RouterSettings router(const std::string& text) { return parse_router(text); }

bool is_warning(const std::string& note) { return note.rfind("warning: ", 0) == 0; }

struct Cell {
  std::string stored;
  RouterRequest given;
  std::string expected;
};

// Checks the resulting router for both purposes, without notes.
void check_silent(const std::vector<Cell>& cells) {
  for (const auto& cell : cells) {
    for (const auto purpose : kBoth) {
      CAPTURE(cell.stored, cell.given.router, cell.given.cf, static_cast<int>(purpose));
      const ResolvedRouter resolved = resolve(cell.stored, cell.given, purpose);
      CHECK(resolved.router == router(cell.expected));
      CHECK(resolved.notes.empty());
    }
  }
}

}  // namespace

TEST_CASE("+ir and +fr come and go in silence", "[route]") {
  check_silent({{"top1", {"top1+ir", "", {}}, "top1+ir"},
                {"top1", {"top1+fr", "", {}}, "top1+fr"},
                {"top2", {"top2+ir+fr", "", {}}, "top2+ir+fr"},
                {"top2+ir+fr:cf=1.5", {"top2", "", {}}, "top2:cf=1.5"},
                {"top1+ir", {"top1+fr", "", {}}, "top1+fr"}});
}

TEST_CASE("any capacity factor and any divisor of the experts stand in silence", "[route]") {
  check_silent({{"top1", {"top1:cf=0.25", "", {}}, "top1:cf=0.25"},
                {"top1", {"", "3", {}}, "top1:cf=3"},
                {"top2+ir", {"", "inf", {}}, "top2+ir:cf=inf"},
                {"top2:cf=inf", {"", "0.5", {}}, "top2:cf=0.5"}});
  for (const auto purpose : kBoth) {
    for (const int64_t ranks : {1, 2, 4, 8}) {
      const ResolvedRouter resolved = resolve("top1+ir", {"", "", ranks}, purpose);
      CHECK(resolved.ep_ranks == ranks);
      CHECK(resolved.notes.empty());
    }
    CHECK(test::user_error_of([&] {
            resolve("top1+ir", {"", "", 3}, purpose);
          }) == "--ep-ranks 3 does not divide the 8 experts; use a divisor");
  }
}

TEST_CASE("p and max of top-p change in silence, and max goes where it is not said", "[route]") {
  check_silent({{"topp:0.4", {"topp:0.1", "", {}}, "topp:0.1"},
                {"topp:0.4", {"topp:0.7", "", {}}, "topp:0.7"},
                {"topp:0.4", {"topp:0.4,max=2", "", {}}, "topp:0.4,max=2"},
                {"topp:0.4,max=2", {"topp:0.4,max=3", "", {}}, "topp:0.4,max=3"},
                {"topp:0.4,max=2", {"topp:0.4", "", {}}, "topp:0.4"}});
}

TEST_CASE("a bias comes in silence as it is asked for, and goes with a note where none is named",
          "[route]") {
  for (const auto purpose : kBoth) {
    const ResolvedRouter kept = resolve("top2:bias=0.001", {"", "2", {}}, purpose);
    CHECK(kept.router == router("top2:cf=2,bias=0.001"));
    CHECK(kept.notes.empty());
    const ResolvedRouter gone = resolve("top2:bias=0.001", {"top2+ir", "", {}}, purpose);
    CHECK(gone.router == router("top2+ir"));
    CHECK(gone.notes == std::vector<std::string>{
                            "top2+ir in place of the stored top2:bias=0.001: bias was 0.001; a "
                            "router without bias chooses by scores alone"});
    const ResolvedRouter fresh = resolve("top2", {"top2:bias=0.01", "", {}}, purpose);
    CHECK(fresh.router == router("top2:bias=0.01"));
    CHECK(fresh.notes.empty());
  }
}

TEST_CASE("k inside top-k is noted once, and the capacity factor of the folder stays", "[route]") {
  for (const auto purpose : kBoth) {
    const ResolvedRouter kept = resolve("top1", {"top2", "", {}}, purpose);
    CHECK(kept.router == router("top2:cf=1"));
    CHECK(kept.notes ==
          std::vector<std::string>{"top2:cf=1 in place of the stored top1: k was 1; the "
                                   "capacity factor is kept unless given"});
    CHECK(resolve("top2:cf=inf", {"top1", "", {}}, purpose).router == router("top1:cf=inf"));
    const ResolvedRouter given = resolve("top1", {"top2", "2.5", {}}, purpose);
    CHECK(given.router == router("top2:cf=2.5"));
    CHECK(given.notes.size() == 1);
  }
}

TEST_CASE("top-k and top-p stand in for each other with one warning", "[route]") {
  for (const auto purpose : kBoth) {
    for (const auto& [stored, given] :
         {std::pair("top2", "topp:0.4"), std::pair("topp:0.4,max=2", "top1+ir:cf=2")}) {
      const ResolvedRouter resolved = resolve(stored, {given, "", {}}, purpose);
      CHECK(resolved.router == router(given));
      REQUIRE(resolved.notes.size() == 1);
      CHECK(is_warning(resolved.notes[0]));
      CHECK(resolved.notes[0].find("weights that sum to another value") != std::string::npos);
    }
  }
}

TEST_CASE("the gate changes with --force only, and then with one warning", "[route]") {
  for (const auto purpose : kBoth) {
    for (const auto& [stored, given] :
         {std::pair("top2", "top2:gate=none"), std::pair("top2:gate=none", "top2:gate=selected")}) {
      CAPTURE(stored);
      const std::string refused = refusal(stored, given, purpose);
      CHECK(refused.find("in place of the stored " + to_string(router(stored))) !=
            std::string::npos);
      CHECK(refused.find("another gate rescales every MoE output; add --force if that is meant") !=
            std::string::npos);
      const ResolvedRouter forced = resolve(stored, {given, "", {}}, purpose, /*force=*/true);
      CHECK(forced.router == router(given));
      REQUIRE(forced.notes.size() == 1);
      CHECK(is_warning(forced.notes[0]));
    }
  }
}

TEST_CASE("softmax and ReLU routers are refused in each other's place, forced or not", "[route]") {
  for (const auto purpose : kBoth) {
    for (const bool force : {false, true}) {
      for (const auto& [stored, given] :
           {std::pair("top1", "relu:k=1"), std::pair("topp:0.4", "relu:k=1"),
            std::pair("relu:k=1", "top1"), std::pair("relu:k=1", "topp:0.4")}) {
        CHECK(refusal(stored, given, purpose, force)
                  .find("ReLU and softmax logits mean different "
                        "things") != std::string::npos);
      }
    }
  }
}

TEST_CASE("k of ReLU does nothing at test, and moves the target sparsity in training", "[route]") {
  const ResolvedRouter tested = resolve("relu:k=1", {"relu:k=2", "", {}}, Purpose::kEvaluate);
  CHECK(tested.router == router("relu:k=1"));
  CHECK(tested.notes ==
        std::vector<std::string>{"relu:k=2 in place of the stored relu:k=1: k matters in training "
                                 "only, ignored here"});
  const ResolvedRouter trained = resolve("relu:k=1", {"relu:k=2", "", {}}, Purpose::kTrain);
  CHECK(trained.router == router("relu:k=2"));
  CHECK(trained.notes ==
        std::vector<std::string>{"relu:k=2 in place of the stored relu:k=1: k changes "
                                 "the target sparsity"});
  CHECK(refusal("relu:k=1", "relu:k=9", Purpose::kEvaluate).find("the layers have 8") !=
        std::string::npos);
}

TEST_CASE("the order of slots changes in silence", "[route]") {
  check_silent({{"top2", {"top2:order=score", "", {}}, "top2:order=score"},
                {"top2:order=score", {"top2:order=choice", "", {}}, "top2"}});
}

TEST_CASE("what only training reads changes in silence there, and is ignored with a note at test",
          "[route]") {
  const std::vector<Cell> cells = {
      {"top2", {"top2:st=off", "", {}}, "top2:st=off"},
      {"top2", {"top2:lb=selected", "", {}}, "top2:lb=selected"},
      {"top2:lb=selected", {"top2:lb=first", "", {}}, "top2"},
      {"relu:k=1", {"relu:k=1,lambda0=0.5", "", {}}, "relu:k=1,lambda0=0.5"},
      {"relu:k=1", {"relu:k=1,mult=1.5", "", {}}, "relu:k=1,mult=1.5"},
      {"relu:k=1", {"relu:k=1,l1=plain", "", {}}, "relu:k=1,l1=plain"}};
  for (const auto& cell : cells) {
    CAPTURE(cell.given.router);
    const ResolvedRouter trained = resolve(cell.stored, cell.given, Purpose::kTrain);
    CHECK(trained.router == router(cell.expected));
    CHECK(trained.notes.empty());
    CHECK(trained.names_lambda0 == (cell.given.router.find("lambda0") != std::string::npos));
    const ResolvedRouter tested = resolve(cell.stored, cell.given, Purpose::kEvaluate);
    CHECK(tested.router == router(cell.stored));
    REQUIRE(tested.notes.size() == 1);
    CHECK(tested.notes[0].find("matters in training only, ignored here") != std::string::npos);
  }
  const auto both = resolve("top1", {"top1:st=off,lb=selected", "", {}}, Purpose::kEvaluate);
  REQUIRE(both.notes.size() == 1);
  CHECK(both.notes[0].find("st, lb matter in training only") != std::string::npos);
}

TEST_CASE("options of ReLU that --router does not name stay as stored", "[route]") {
  const auto resolved =
      resolve("relu:k=1,lambda0=0.5,mult=1.5,l1=plain", {"relu:k=2", "", {}}, Purpose::kTrain);
  CHECK(resolved.router == router("relu:k=2,lambda0=0.5,mult=1.5,l1=plain"));
  CHECK_FALSE(resolved.names_lambda0);
}

TEST_CASE("a router in full makes itself in place of any of its family", "[route]") {
  const std::vector<std::vector<std::string>> families = {
      {"top1", "top2+ir+fr:cf=inf", "top1:cf=0.5,gate=none,st=off,lb=selected,order=score",
       "top3+fr:gate=none"},
      {"topp:0.4", "topp:0.7,max=2"},
      {"relu:k=1", "relu:k=2,lambda0=1e-06,mult=1.5,l1=plain"}};
  CHECK(to_full_string(router("top1+ir")) ==
        "top1+ir:cf=1,gate=selected,st=on,lb=first,order=choice");
  CHECK(to_full_string(router("relu:k=1")) == "relu:k=1,lambda0=1e-08,mult=1.2,l1=refined");
  for (const auto& family : families) {
    for (const auto& stored : family) {
      for (const auto& wanted : family) {
        CAPTURE(stored, wanted);
        const std::string text = to_full_string(router(wanted));
        CHECK(resolve(stored, {text, "", {}}, Purpose::kTrain, true).router == router(wanted));
      }
    }
  }
}

TEST_CASE("a gate_scale made for the stored gates is warned of when other gates stand in",
          "[route]") {
  const auto notes = [](const std::string& stored, const std::string& given, double scale) {
    return override_router({parse_router(stored), 8, 8, scale}, {given, "", {}}, true,
                           Purpose::kEvaluate)
        .notes;
  };
  CHECK(notes("topp:0.4", "topp:0.3", 1.0).empty());
  const auto warned = notes("topp:0.4", "topp:0.3", 1.5);
  REQUIRE(warned.size() == 1);
  CHECK(warned[0] ==
        "warning: topp:0.3 in place of the stored topp:0.4: the folder's gate_scale 1.5 was chosen "
        "for the stored router and stays");
  CHECK(notes("top1:gate=none", "top1+ir:gate=none", 1.5).empty());
  CHECK(notes("topp:0.4", "top1", 1.5).size() == 2);  // also the warning of another family
}

}  // namespace moe::route
