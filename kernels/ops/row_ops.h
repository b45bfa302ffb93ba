#pragma once
// The operations of expert_rows.h and row_gates.h on tensors, with gradients: a routed layer whose
// sizes the host knows without asking the device. On the CPU they are the references, f32 or f64.
// T tokens, C columns, E experts, D width, P rows with gaps.

#include <ATen/ATen.h>

#include "kernels/ops/row_gates.h"

namespace moe::kernels {

struct RowLayout {
  at::Tensor origin;         // [P] i32
  at::Tensor position;       // [T, C] i32
  at::Tensor expert, times;  // [T, C] i32
  at::Tensor ends;           // [E] i32
  int64_t tokens() const { return position.size(0); }
  int64_t columns() const { return position.size(1); }
  int64_t experts() const { return ends.size(0); }
};

// Of a plan's lists (core/route/plan.h): token, expert, choice, count [rows] i64, expert_rows [E]
// i64. Choices are below `columns`.
RowLayout lay_out_rows(const at::Tensor& token, const at::Tensor& expert, const at::Tensor& choice,
                       const at::Tensor& count, const at::Tensor& expert_rows, int64_t tokens,
                       int64_t columns);

// x [T, D] -> [P, D] of its type.
at::Tensor gather_rows(const at::Tensor& x, const RowLayout& layout);

// rows [P, D], weight [T, C] f32 (f64 of f64) -> [T, D] of the weight's type.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const RowLayout& layout);

// logits [T, E] f32 (f64) -> [T, C].
at::Tensor row_gates(const at::Tensor& logits, const RowLayout& layout, GateRule rule,
                     bool straight_through);

}  // namespace moe::kernels
