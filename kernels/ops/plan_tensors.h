#pragma once
// Counters, gates and losses of a finished plan (plan_gate_weights.h) as functions of tensors. T
// tokens, E experts, R rows of the plan, W ranks.

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

#include "kernels/ops/plan_gate_weights.h"

namespace moe::kernels {

struct PlanTensors {
  // token, expert, choice, count [R] i64 (core/route/plan.h); source_rank [T] i64, W: padding
  std::vector<at::Tensor> lists;
  int64_t ranks, k;
};

// Returns PlanCountsArgs::count and ::counted of a plan. logits, scores [T, E] f32, contiguous.
std::tuple<at::Tensor, at::Tensor> count_plan(const at::Tensor& logits, const at::Tensor& scores,
                                              const PlanTensors& plan, bool rectifies,
                                              bool is_dropless);

struct GateWeights {
  at::Tensor combine;          // [T, E] f32
  at::Tensor weights;          // [R] f32
  at::Tensor load_balance, z;  // [] f32
};
// Returns gate weights and losses; differentiable in logits [T, E] f32. count [T, E] f32 from
// count_plan(); by_logit [T, E] i64, experts of each token, best first.
GateWeights plan_gate_weights(const at::Tensor& logits, const at::Tensor& count,
                              const at::Tensor& by_logit, const PlanTensors& plan,
                              const GateOptions& options);

}  // namespace moe::kernels
