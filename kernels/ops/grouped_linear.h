#pragma once
// Grouped GEMM: one product an expert over rows that are sorted by expert: y = x w[e]^T for the
// rows of expert e. Precision follows the type of the rows as in kernels/ops/linear.h. R rows, E
// experts, D inner width, N outer width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/weight.h"

namespace moe::kernels {

// rows [R, D], expert order; weight [E, N, D]; rows_per_expert [E] with a sum <= R. Returns [R, N];
// rows past the sum are 0. Differentiable in rows and weight: an expert without rows gets 0.
// `gemm`: by whom, on a GPU, forward and backward.
at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<int64_t>& rows_per_expert,
                          GroupedGemm gemm = GroupedGemm::kAuto);
// The same with the segments' `ends` [E] i32 on the device (below); rows past the last end hold
// anything, and get a gradient that is anything.
at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends,
                          GroupedGemm gemm = GroupedGemm::kAuto);

// Whether `gemm` has products of `rows` made by at::_grouped_mm where the host knows their counts.
bool takes_grouped_mm(const at::Tensor& rows, GroupedGemm gemm);

// [E] i32 on `device`: where the segments of so many rows end. The host does not wait.
at::Tensor ends_of(const std::vector<int64_t>& rows_per_expert, at::Device device);
// The way back: rows of each segment, gaps included. Waits for the device.
std::vector<int64_t> rows_per_expert_of(const at::Tensor& ends);
// `product` [n, N] with zeros behind it, [rows, N]. Differentiable.
at::Tensor with_zero_rows(const at::Tensor& product, int64_t rows);

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
// back for bf16 on an H100 or H200, whose products are one `at::_grouped_mm`; elsewhere that loops
// over the experts. Operands whose rows are not whole 16 bytes are copied into such that are.

// [R, N] in the type of `in`; rows past the last end hold anything.
at::Tensor grouped_product(const at::Tensor& in, const at::Tensor& weights, bool transposed,
                           const at::Tensor& ends);

// [E, M, N] in the weights' type, or undefined as above. On a GPU bf16 operands give sums that are
// rounded to bf16 once before they are widened.
at::Tensor grouped_weight_gradient(const at::Tensor& left, const at::Tensor& right,
                                   const at::Tensor& weights, const at::Tensor& ends);

}  // namespace moe::kernels
