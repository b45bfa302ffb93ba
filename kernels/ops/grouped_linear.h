#pragma once
// Grouped GEMM: one product an expert over rows that are sorted by expert: y = x w[e]^T for the
// rows of expert e. Precision follows the type of the rows as in kernels/ops/linear.h. R rows, E
// experts, D inner width, N outer width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/weight.h"

namespace moe::kernels {

// rows [R, D], expert order; weight [E, N, D]; rows_per_expert [E] with a sum <= R. Returns [R, N];
// rows past the sum are 0. Differentiable in rows and weight: an expert without rows gets 0.
at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<int64_t>& rows_per_expert);
// The same with the segments' `ends` [E] i32 on the device (below); rows past the last end hold
// anything, and get a gradient that is anything.
at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends);

// Returns true if `rows` are on a GPU where `at::_grouped_mm` is one launch (compute capability 9.x
// or 10.x). Elsewhere each expert has a product of its own, and the host must know the counts.
bool has_grouped_mm(const at::Tensor& rows);

// Returns the rows of each segment, gaps included. Waits for the device of `ends`.
std::vector<int64_t> rows_per_expert_of(const at::Tensor& ends);

// The parts of it, for autograd nodes that are larger.

// [total, N] in the type of `in`: in[e's rows] * weights[e]^T (transposed) or * weights[e]; rows
// past the experts' are 0.
at::Tensor grouped_product(const at::Tensor& in, const at::Tensor& weights, bool transposed,
                           int64_t total, const std::vector<int64_t>& rows_per_expert);

// The same, transposed, of weights that may be several tensors (kernels/ops/weight.h).
at::Tensor grouped_product(const at::Tensor& in, const Weight& weights, int64_t total,
                           const std::vector<int64_t>& rows_per_expert);

// [E, M, N] in the weights' type: for each expert left^T * right over its rows; 0 where it has
// none. Undefined where it was added to the weights' gradient instead (gradient_to_add_to()).
at::Tensor grouped_weight_gradient(const at::Tensor& left, const at::Tensor& right,
                                   const at::Tensor& weights,
                                   const std::vector<int64_t>& rows_per_expert);

// The same where the host does not know the tokens per expert: `ends` [E] i32 says on the device
// where each expert's segment ends (kernels/ops/permute.h), the first starts at 0. Nothing is read
// back for bf16 where has_grouped_mm(); elsewhere the counts are read and experts multiplied one by
// one. Operands whose rows are not whole 16 bytes are copied into such that are.

// [R, N] in the type of `in`; rows past the last end hold anything.
at::Tensor grouped_product(const at::Tensor& in, const at::Tensor& weights, bool transposed,
                           const at::Tensor& ends);

// [E, M, N] in the weights' type, or undefined as above. On a GPU bf16 operands give sums that are
// rounded to bf16 once before they are widened.
at::Tensor grouped_weight_gradient(const at::Tensor& left, const at::Tensor& right,
                                   const at::Tensor& weights, const at::Tensor& ends);

// Returns true if the gradient of f32 `weights` [E, M, N] on a GPU is faster expert by expert,
// though the host must read the counts for that: each product then writes f32 where the grouped one
// writes bf16 that is widened in a second pass (6 bytes a number). False for small experts, whose
// launches would take longer than that pass.
bool prefers_gradients_by_expert(const at::Tensor& weights);

}  // namespace moe::kernels
