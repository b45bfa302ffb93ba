#pragma once
// A top-k router by operations of its own (kernels/ops/router.h, top_k_plan.h, plan_weights.h): a
// few for a plan where the rules of rule.h take about a hundred, and a few for its counters, gates
// and losses where counters.cpp, gates.cpp and losses.cpp take about seventy. On a GPU they are
// launches, on the CPU loops that all threads share, as LibTorch's sorts and small operations are
// not. The rules stay what defines it.

#include "core/route/losses.h"
#include "core/route/rule.h"
#include "kernels/ops/weigh_plan.h"

namespace moe::route {

// What top_k, within_capacity, fill_in and intra_gpu make of `input`, f32, as `settings` (top-k)
// say. On a GPU at most kernels::kMaxRouterExperts experts, and tokens choose by logit.
Plan plan_by_kernels(const RouteInput& input, const RouterSettings& settings);

// multiplicities() of such a plan (gates.h), and what Counters::counted is made of.
kernels::PlanCounts count_by_kernels(const RouteInput& input, const Plan& plan,
                                     const RouterSettings& settings);

// softmax_gates() and row_weights() (gates.h), load_balance_loss() of the first `lb_choices`, and
// z_loss() where `input` wants it, undefined else. Differentiable in the logits [T, E] f32.
struct KernelGates {
  bool normalise, straight_through;
  int64_t lb_choices;
};
kernels::PlanWeights weigh_by_kernels(const at::Tensor& logits, const at::Tensor& count,
                                      const RouteInput& input, const Plan& plan,
                                      const KernelGates& gates);

}  // namespace moe::route
