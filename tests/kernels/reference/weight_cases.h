#pragma once
// Cases of a plan's counts, weights and losses for the kernels of any device, against the
// reference.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/plan_gate_weights.h"

namespace moe::test {

// The kernels of one device: to(tensor) copies to it, counts(args) etc. run a kernel, and same(run)
// returns results on the CPU and checks that they do not depend on the order of threads.
template <typename To, typename Counts, typename Weights, typename Backward, typename Same>
struct PlanKernels {
  Room room;
  To to;
  Counts counts;
  Weights weights;
  Backward backward;
  Same same;
};
template <typename... Functions>
PlanKernels(Room, Functions...) -> PlanKernels<Functions...>;

template <typename Kernels>
void check_plan_counts(const Kernels& kernels, const GivenPlan& given) {
  const GivenPlan there = given.moved(kernels.to);
  for (const bool rectifies : {false, true}) {
    for (const bool is_dropless : {false, true}) {
      CAPTURE(rectifies, is_dropless);
      const auto expected =
          counts(given, rectifies, is_dropless, poisoned_host, plan_counts_reference);
      const auto actual = kernels.same(
          [&] { return counts(there, rectifies, is_dropless, kernels.room, kernels.counts); });
      CHECK(at::equal(actual[0], expected[0]));
      const int64_t numbers = expected[1].numel() - 1;
      CHECK(at::equal(actual[1].narrow(0, 0, numbers), expected[1].narrow(0, 0, numbers)));
      CHECK(std::abs(entropy_of(actual[1]) - entropy_of(expected[1])) <=
            1e-6 * static_cast<double>(given.logits.numel()));
    }
  }
}

template <typename Kernels>
void check_plan_gate_weights(const Kernels& kernels, const GivenPlan& given,
                             const kernels::GateOptions& options) {
  CAPTURE(options.normalise, options.straight_through, options.lb_choices);
  const GivenPlan there = given.moved(kernels.to);
  const at::Tensor count = counts(given, true, false, poisoned_host, plan_counts_reference)[0];
  const at::Tensor count_there = kernels.to(count);
  const auto expected = weights(given, options, count, poisoned_host, plan_gate_weights_reference);
  const auto run = [&] {
    return weights(there, options, count_there, kernels.room, kernels.weights);
  };
  const auto actual = kernels.same(run);
  for (const size_t i : {0, 1, 3, 4}) {
    CAPTURE(i);
    CHECK(is_close_weight(actual[i], expected[i]));
  }
  CHECK(at::equal(actual[2], expected[2]));

  const std::vector<at::Tensor> forward = run();
  const at::Tensor of_rows = at::randn({given.token.numel()});
  const at::Tensor of_all = at::randn_like(given.logits);
  const at::Tensor of_balance = at::full({}, 0.7F), of_z = at::full({}, -0.3F);
  for (const Upstream& up : {Upstream{of_rows, {}, {}, {}}, Upstream{of_rows, {}, of_balance, {}},
                             Upstream{{}, of_all, {}, of_z}, Upstream{{}, {}, of_balance, of_z},
                             Upstream{of_rows, of_all, of_balance, of_z}}) {
    CAPTURE(up.weights.defined(), up.combine.defined(), up.load_balance.defined(), up.z.defined());
    const auto if_any = [&](const at::Tensor& t) { return t.defined() ? kernels.to(t) : t; };
    const Upstream up_there{if_any(up.weights), if_any(up.combine), if_any(up.load_balance),
                            if_any(up.z)};
    const auto found = kernels.same([&] {
      return std::vector{
          gradient(there, options, count_there, forward, up_there, kernels.room, kernels.backward)};
    });
    CHECK(is_close_weight(found[0], gradient(given, options, count, expected, up, poisoned_host,
                                             plan_gate_weights_backward_reference)));
  }
}

template <typename Kernels>
void check_plan_gate_weights(const Kernels& kernels, int64_t tokens, int64_t experts, int64_t ranks,
                             int64_t k, double scale = 2) {
  CAPTURE(tokens, experts, ranks, k, scale);
  const GivenPlan given = random_plan(tokens, experts, ranks, k, scale);
  check_plan_counts(kernels, given);
  for (const auto& [normalise, straight_through, choices] :
       {std::tuple{true, true, int64_t{1}}, {true, false, k}, {false, false, k}}) {
    check_plan_gate_weights(
        kernels, given, {normalise, straight_through, choices, std::max<int64_t>(1, ranks - 1)});
  }
}

template <typename Kernels>
void check_small_plans(const Kernels& kernels) {
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 33}) {
    check_plan_gate_weights(kernels, tokens, 1, 1, 1);
    check_plan_gate_weights(kernels, tokens, 3, 1, 2);
    check_plan_gate_weights(kernels, tokens, 4, 2, 1);
    check_plan_gate_weights(kernels, tokens, 4, 4, 4);  // k = E
    check_plan_gate_weights(kernels, tokens, 48, 4, 2);
  }
  check_plan_gate_weights(kernels, 40, 8, 2, 2, 20);  // saturated scores
  check_plan_gate_weights(kernels, 40, 8, 2, 2, 0);   // ties everywhere
}

}  // namespace moe::test
