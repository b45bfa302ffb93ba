#pragma once
// Counters, gates and losses of a finished plan as tensors, with autograd. The kernels are in
// plan_gate_weights.h. T tokens, E experts, R rows of the plan, W ranks.

#include <ATen/core/Tensor.h>

#include "kernels/ops/plan_gate_weights.h"

namespace moe::kernels {

struct PlanTensors {
  at::Tensor token, expert, choice, count;  // [R] i64 as in core/route/plan.h
  at::Tensor source_rank;                   // [T] i64, rank of each token, W for padding
  int64_t ranks, k;
};

struct PlanCounts {
  at::Tensor count;    // [T, E] f32, how often each expert serves each token
  at::Tensor counted;  // [(W + 1) * kRowKinds + 2] i64, see PlanCountsArgs
};
// Counts the rows of `plan`. `logits` and `scores` [T, E] f32 are contiguous.
PlanCounts count_plan(const at::Tensor& logits, const at::Tensor& scores, const PlanTensors& plan,
                      bool rectifies, bool is_dropless);

struct GateWeights {
  at::Tensor combine;          // [T, E] f32
  at::Tensor weights;          // [R] f32
  at::Tensor load_balance, z;  // [] f32
};
// Computes gate weights and losses; differentiable in logits [T, E] f32. `count` is
// PlanCounts::count; `by_logit` [T, E] i64 has the experts of each token, best first.
GateWeights plan_gate_weights(const at::Tensor& logits, const at::Tensor& count,
                              const at::Tensor& by_logit, const PlanTensors& plan,
                              const GateOptions& options);

}  // namespace moe::kernels
