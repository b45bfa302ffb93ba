#pragma once
// Tokens to rows in expert order, and rows back to tokens, weighted: what stands before and after
// the experts' products. T tokens, D width, R rows; a token may have several rows, or none.
//
//   gathered_r = x_{token r}          d x_t = sum over the rows r of t of d gathered_r
//   y_t = sum over the rows r of t of gate_r row_r
//                                     d row_r = gate_r dy_{token r},  d gate_r = row_r dy_{token r}
//
// Sums run over rows in their order, whatever the number of threads.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moe::kernels {

// x [T, D] of any type, token [R] i64 -> [R, D]. Differentiable in x.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& token);

// rows [R, D] and gate [R] f32 (or f64), token [R] i64 -> [tokens, D] in the gate's type; bf16 rows
// are widened. Differentiable in rows and gate.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& gate, const at::Tensor& token,
                        int64_t tokens);

}  // namespace moe::kernels
