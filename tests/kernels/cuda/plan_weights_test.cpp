#include "kernels/ops/plan_weights.h"

#include "tests/support/gpu.h"
#include "tests/support/plan_weights.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

void check_counts(const GivenPlan& given, const GivenPlan& there) {
  for (const bool rectifies : {false, true}) {
    for (const bool dropless : {false, true}) {
      CAPTURE(rectifies, dropless);
      const auto expected =
          counts(given, rectifies, dropless, poisoned_host, moe::test::plan_counts_reference);
      const auto actual = in_two_orders([&] {
        return counts(there, rectifies, dropless, poisoned, [&](const PlanCountsArgs& args) {
          plan_counts_cuda(args, stream_of(there.logits));
        });
      });
      CHECK(at::equal(actual[0], expected[0]));
      const int64_t numbers = expected[1].numel() - 1;
      CHECK(at::equal(actual[1].narrow(0, 0, numbers), expected[1].narrow(0, 0, numbers)));
      CHECK(std::abs(entropy_of(actual[1]) - entropy_of(expected[1])) <=
            1e-6 * static_cast<double>(given.logits.numel()));
    }
  }
}

void check_weights(const GivenPlan& given, const GivenPlan& there, const PlanWeightsKind& kind) {
  const Tensor count =
      counts(given, true, false, poisoned_host, moe::test::plan_counts_reference)[0];
  const Tensor count_there = to_gpu(count);
  const auto expected =
      weights(given, kind, count, poisoned_host, moe::test::plan_weights_reference);
  const auto run = [&] {
    return weights(there, kind, count_there, poisoned, [&](const PlanWeightsArgs& args) {
      plan_weights_cuda(args, stream_of(there.logits));
    });
  };
  const auto actual = in_two_orders(run);
  for (const size_t i : {0, 1, 3, 4}) {
    CAPTURE(i);
    CHECK(is_close_weight(actual[i], expected[i]));
  }
  CHECK(at::equal(actual[2], expected[2]));

  const std::vector<Tensor> forward = run();
  const Tensor of_rows = at::randn({given.token.numel()}), of_all = at::randn_like(given.logits);
  const Tensor of_balance = at::full({}, 0.7F), of_z = at::full({}, -0.3F);
  for (const Upstream& up : {Upstream{of_rows, {}, {}, {}}, Upstream{of_rows, {}, of_balance, {}},
                             Upstream{{}, of_all, {}, of_z}, Upstream{{}, {}, of_balance, of_z},
                             Upstream{of_rows, of_all, of_balance, of_z}}) {
    const auto if_any = [](const Tensor& t) { return t.defined() ? to_gpu(t) : t; };
    const Upstream up_there{if_any(up.weights), if_any(up.combine), if_any(up.load_balance),
                            if_any(up.z)};
    const Tensor wanted = gradient(given, kind, count, expected, up, poisoned_host,
                                   moe::test::plan_weights_backward_reference);
    const auto found = in_two_orders([&] {
      return std::vector<Tensor>{gradient(there, kind, count_there, forward, up_there, poisoned,
                                          [&](const PlanWeightsBackwardArgs& args) {
                                            plan_weights_backward_cuda(args,
                                                                       stream_of(there.logits));
                                          })};
    });
    CAPTURE(up.weights.defined(), up.combine.defined(), up.load_balance.defined(), up.z.defined());
    CHECK(is_close_weight(found[0], wanted));
  }
}

void check(int64_t tokens, int64_t experts, int64_t ranks, int64_t k, double scale = 2) {
  CAPTURE(tokens, experts, ranks, k, scale);
  const GivenPlan given = random_plan(tokens, experts, ranks, k, scale),
                  there = given.moved(to_gpu);
  check_counts(given, there);
  for (const auto& [normalise, straight_through, choices] :
       {std::tuple{true, true, int64_t{1}}, {true, false, k}, {false, false, k}}) {
    CAPTURE(normalise, straight_through, choices);
    check_weights(given, there,
                  {normalise, straight_through, choices, std::max<int64_t>(1, ranks - 1)});
  }
}

}  // namespace

TEST_CASE("the kernels count and weigh a plan as plain loops in double do, and its gradient",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
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
}

TEST_CASE("the kernels weigh plans of many experts and of many ranks", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  check(19, 35, 5, 3);
  check(19, 65, 1, 3);
  check(19, 130, 2, 3);
  check(19, 256, 16, 3);   // more counts than shared memory holds
  check(19, 256, 256, 1);  // kinds of rows too
}

TEST_CASE("the kernels weigh plans of more tokens than they have warps",
          "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const GivenPlan given = random_plan(8300, 4, 2, 2, 2), there = given.moved(to_gpu);
  check_counts(given, there);
  check_weights(given, there, {true, true, 1, 2});
}

TEST_CASE("the kernels refuse more experts than their lanes can hold", "[kernels][gpu]") {
  MOE_NEED_GPU();
  const GivenPlan there = random_plan(1, 257, 1, 1, 1).moved(to_gpu);
  REQUIRE_THROWS_AS(
      counts(there, false, false, poisoned,
             [&](const PlanCountsArgs& args) { plan_counts_cuda(args, stream_of(there.logits)); }),
      std::runtime_error);
}
