#pragma once
// SwiGLU feed-forward networks of all experts (LLaMA), for rows in expert order. For the rows x of
// expert e:
//
//   y = ( silu(x gate[e]^T) * (x up[e]^T) ) down[e]^T
//
// A dense FFN is the case E = 1. R rows, E experts, D model width, F expert width.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/linear.h"

namespace moe::kernels {

// Returns y [R, D]. rows [R, D] in expert order; gate_up [E, 2F, D], gate rows first; down [E, D,
// F]. Rows after those of the last expert are 0; with Segments::ends they are undefined, and so is
// their gradient. Differentiable in all three tensors; the gradient of an expert without rows is 0.
// Autograd saves the inputs and the hidden products [used rows, 2F]; backward recomputes the
// activation.
at::Tensor grouped_swiglu(const at::Tensor& rows, const at::Tensor& gate_up, const at::Tensor& down,
                          const Segments& segments);

// Overload for weights in several tensors: CPU only, counts on the host, not differentiable. The
// result has the bits of the overload for one tensor, with the exception stated at linear()
// (kernels/ops/linear.h).
at::Tensor grouped_swiglu(const at::Tensor& rows, const Weight& gate_up, const Weight& down,
                          const Segments& segments);

// Adds the FFN of rows [T, D] f32 or bf16 to `sum` [T, D] f32, without rounding the FFN to
// bf16. Each weight has one matrix. CPU only, not differentiable.
void add_swiglu(at::Tensor& sum, const at::Tensor& rows, const Weight& gate_up, const Weight& down);

// Returns the number of intermediate elements per row in CPU inference with many rows per expert,
// for memory estimates: F if the products of gate and up are fused with the activation, else 3 F.
// inner = D, width = F.
int64_t ffn_activation_numel(int64_t inner, int64_t width);

}  // namespace moe::kernels
