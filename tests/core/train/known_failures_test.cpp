// Warnings before the first step, against counts by hand and the gradients of the gates.

#include <functional>

#include "core/route/route.h"
#include "core/train/loop/plan.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe;
using namespace moe::train;

namespace {

// Reference: the share of requests that capacity refuses, over all choices of k of E experts by
// `tokens` tokens.
double counted_share(int64_t tokens, int64_t experts, int64_t k, int64_t slots) {
  std::vector<int64_t> sets;  // of k experts, as bits
  for (int64_t set = 0; set < (int64_t{1} << experts); ++set) {
    if (__builtin_popcountll(static_cast<uint64_t>(set)) == k) {
      sets.push_back(set);
    }
  }
  int64_t ways = 0, refused = 0;
  std::vector<int64_t> load(static_cast<size_t>(experts));
  const std::function<void(int64_t)> choose = [&](int64_t token) {
    if (token == tokens) {
      ++ways;
      for (const int64_t requests : load) {
        refused += std::max<int64_t>(0, requests - slots);
      }
      return;
    }
    for (const int64_t set : sets) {
      for (int64_t expert = 0; expert < experts; ++expert) {
        load[static_cast<size_t>(expert)] += set >> expert & 1;
      }
      choose(token + 1);
      for (int64_t expert = 0; expert < experts; ++expert) {
        load[static_cast<size_t>(expert)] -= set >> expert & 1;
      }
    }
  };
  choose(0);
  return static_cast<double>(refused) / static_cast<double>(ways * tokens * k);
}

// Returns true if sum(w * U) with random U has a gradient in the logits.
bool has_gradient(const std::string& router, int64_t tokens, int64_t experts) {
  const auto settings = route::parse_router(router);
  const at::Tensor logits = at::randn({tokens, experts}).requires_grad_(true);
  const auto routing = route::route(logits, settings, route::partition_tokens(tokens, 1));
  (routing.combine * at::randn({tokens, experts})).sum().backward();
  // Gradients that cancel leave the rounding of a softmax, 1e-7 of numbers around 1.
  return logits.grad().abs().max().item<double>() > 1e-5;
}

// Checks that `facts` have one warning, with `part`.
void check_warning(const RunFacts& facts, const std::string& part) {
  const auto warnings = known_failures(facts);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], test::contains_text(part));
}

RunFacts run_facts(const std::string& router, int64_t experts, int64_t rank_tokens) {
  RunFacts start;
  start.router = route::parse_router(router);
  start.experts = experts;
  start.rank_tokens = rank_tokens;
  start.balance_loss = true;
  return start;
}

}  // namespace

TEST_CASE("the share refused by chance is that of all possible choices", "[train]") {
  const auto share = [](const std::string& router, int64_t tokens, int64_t experts) {
    return chance_refusal_share(route::parse_router(router), tokens, experts);
  };
  // C = 2; 4 tokens on 2 experts: (1 * 4 + 2 * 1) / 16 of the requests of each are too many.
  CHECK(share("top1", 4, 2) == Approx(2 * (6.0 / 16) / 4));
  CHECK(share("top1", 4, 2) == Approx(counted_share(4, 2, 1, 2)));
  CHECK(share("top1", 6, 3) == Approx(counted_share(6, 3, 1, 2)));
  CHECK(share("top2", 4, 4) == Approx(counted_share(4, 4, 2, 2)));
  CHECK(share("top2:cf=1", 5, 4) == Approx(counted_share(5, 4, 2, 2)));
  CHECK(share("top3:cf=1.5", 3, 4) == Approx(counted_share(3, 4, 3, 2)));
  CHECK(share("top1:cf=0.5", 6, 3) == Approx(counted_share(6, 3, 1, 1)));  // slots below the mean
  CHECK(share("top2:cf=1", 6, 2) == Approx(0.5));  // every token requests both experts
  CHECK(share("top1", 100'000'000, 8) < 1.1e-4);   // in short time
  CHECK(share("top1:cf=0.5", 1'000'000, 8) == Approx(0.5));
  CHECK(share("top1", 0, 8) == 0);
  for (const char* router : {"top1:cf=inf", "topp:0.4", "relu:k=1", "expert-choice"}) {
    CHECK(share(router, 128, 8) == 0);
  }
}

TEST_CASE("router_learns_from_task() is true if the gates have a gradient", "[train]") {
  at::manual_seed(1);
  for (const char* router :
       {"top1", "top1:st=off", "top1:cf=inf,st=off", "top1+ir:st=off", "top1+fr:st=off",
        "top1+ir+fr:st=off", "top1:gate=none,st=off", "top2:st=off", "top2:cf=inf", "topp:0.4",
        "topp:0.4,max=1", "relu:k=1", "expert-choice"}) {
    CAPTURE(router);
    CHECK(router_learns_from_task(route::parse_router(router), 4) == has_gradient(router, 64, 4));
  }
  CHECK_FALSE(router_learns_from_task(route::parse_router("top1:st=off"), 4));
  CHECK(router_learns_from_task(route::parse_router("top1:st=off"), 1));  // nothing to learn
}

TEST_CASE("each known failure has one warning", "[train]") {
  CHECK(known_failures(run_facts("top1", 8, 1024)).empty());
  CHECK(known_failures(run_facts("top2:cf=inf,st=off", 8, 16)).empty());
  CHECK(known_failures({}).empty());

  auto start = run_facts("top1:cf=inf,st=off", 8, 16);
  check_warning(start, "only the load-balance loss moves the router");
  start.balance_loss = false;
  check_warning(start, "--lb-coef 0");
  start.other_loss = true;
  check_warning(start, "only the auxiliary losses move the router");

  start = run_facts("top1+ir", 8, 128);
  check_warning(start, "128 tokens a logical rank");
  check_warning(start, "9.3 %");
  CHECK(known_failures(run_facts("top1:cf=1.5", 8, 128)).empty());  // slots enough
}

TEST_CASE("a learning rate far above the last one of the parent has a warning", "[train]") {
  RunFacts start;
  start.lr = 1e-3;
  start.last_lr = 1e-4;  // the end of a cosine schedule
  CHECK(known_failures(start).empty());
  start.lr = 4e-3;
  check_warning(start, "--lr 0.004 is 40 times");
  check_warning(start, "0.001 or less");
  start.last_lr = 0;  // no ratio
  CHECK(known_failures(start).empty());
}
