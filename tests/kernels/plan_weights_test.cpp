#include "kernels/ops/plan_weights.h"

#include "tests/support/plan_weights.h"
#include "tests/support/threads.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

void check_counts(const GivenPlan& given) {
  for (const bool rectifies : {false, true}) {
    for (const bool dropless : {false, true}) {
      CAPTURE(rectifies, dropless);
      const auto expected =
          counts(given, rectifies, dropless, poisoned_host, plan_counts_reference);
      const auto actual = by_any_threads(
          [&] { return counts(given, rectifies, dropless, poisoned_host, plan_counts_cpu); });
      CHECK(at::equal(actual[0], expected[0]));
      const int64_t numbers = expected[1].numel() - 1;
      CHECK(at::equal(actual[1].narrow(0, 0, numbers), expected[1].narrow(0, 0, numbers)));
      CHECK(std::abs(entropy_of(actual[1]) - entropy_of(expected[1])) <=
            1e-6 * static_cast<double>(given.logits.numel()));
    }
  }
}

void check_weights(const GivenPlan& given, const PlanWeightsKind& kind) {
  const Tensor count = counts(given, true, false, poisoned_host, plan_counts_reference)[0];
  const auto expected = weights(given, kind, count, poisoned_host, plan_weights_reference);
  const auto actual =
      by_any_threads([&] { return weights(given, kind, count, poisoned_host, plan_weights_cpu); });
  for (const size_t i : {0, 1, 3, 4}) {
    CAPTURE(i);
    CHECK(is_close_weight(actual[i], expected[i]));
  }
  CHECK(at::equal(actual[2], expected[2]));

  const Tensor of_rows = at::randn({given.token.numel()}), of_all = at::randn_like(given.logits);
  const Tensor of_balance = at::full({}, 0.7F), of_z = at::full({}, -0.3F);
  for (const Upstream& up : {Upstream{of_rows, {}, {}, {}}, Upstream{of_rows, {}, of_balance, {}},
                             Upstream{{}, of_all, {}, of_z}, Upstream{{}, {}, of_balance, of_z},
                             Upstream{of_rows, of_all, of_balance, of_z}}) {
    CAPTURE(up.weights.defined(), up.combine.defined(), up.load_balance.defined(), up.z.defined());
    const Tensor wanted =
        gradient(given, kind, count, expected, up, poisoned_host, plan_weights_backward_reference);
    const auto found = by_any_threads([&] {
      return std::vector<Tensor>{
          gradient(given, kind, count, actual, up, poisoned_host, plan_weights_backward_cpu)};
    });
    CHECK(is_close_weight(found[0], wanted));
  }
}

void check(int64_t tokens, int64_t experts, int64_t ranks, int64_t k, double scale = 2) {
  CAPTURE(tokens, experts, ranks, k, scale);
  const GivenPlan given = random_plan(tokens, experts, ranks, k, scale);
  check_counts(given);
  for (const auto& [normalise, straight_through, choices] :
       {std::tuple{true, true, int64_t{1}}, {true, false, k}, {false, false, k}}) {
    CAPTURE(normalise, straight_through, choices);
    check_weights(given, {normalise, straight_through, choices, std::max<int64_t>(1, ranks - 1)});
  }
}

}  // namespace

TEST_CASE("a plan is counted and weighed as plain loops in double do it, and its gradient",
          "[kernels]") {
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 33}) {
    check(tokens, 1, 1, 1);
    check(tokens, 3, 1, 2);
    check(tokens, 4, 2, 1);
    check(tokens, 4, 4, 4);  // k = E
    check(tokens, 48, 4, 2);
  }
  check(40, 8, 2, 2, 20);  // saturated scores
  check(40, 8, 2, 2, 0);   // ties everywhere, no logit is another
  check(19, 257, 1, 3);    // more experts than the kernels of a GPU take
}

TEST_CASE("threads share a plan of many rows and weigh it alike", "[kernels]") {
  at::manual_seed(9);
  check(4500, 4, 2, 2);
  check(600, 256, 256, 1);
}
