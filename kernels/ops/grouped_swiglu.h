#pragma once
// All experts' feed-forward products over rows that are sorted by expert: for the rows of expert e
//
//   y = down[e] ( silu(x gate[e]^T) * (x up[e]^T) )^T        (LLaMA's feed-forward)
//
// A dense FFN is the case E = 1.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/weight.h"

namespace moe::kernels {

// rows [R, D], expert order; gate_up [E, 2F, D], gate rows first; down [E, D, F]; rows_per_expert
// [E] with a sum <= R. Returns [R, D]; rows past the sum are 0. Differentiable in all three
// tensors: an expert without rows gets gradient 0. Saved for backward: the inputs and the hidden
// products [sum, 2F]; the activation is computed again, as its gradient is. `gemm`: who makes the
// products on a GPU.
at::Tensor grouped_swiglu(const at::Tensor& rows, const at::Tensor& gate_up, const at::Tensor& down,
                          const std::vector<int64_t>& rows_per_expert);

// Of one row, the most numbers that inference on the CPU has between rows [R, D = inner] and their
// outputs where many share an expert: the activation [R, F = width] alone where gate and up meet in
// the cache, else they and the activation.
int64_t numbers_between(int64_t inner, int64_t width);

// The same bits of weights whose matrices may lie apart; on the CPU and not differentiable where
// they do.
at::Tensor grouped_swiglu(const at::Tensor& rows, const Weight& gate_up, const Weight& down,
                          const std::vector<int64_t>& rows_per_expert);

// sum [T, D] f32 += the feed-forward of rows [T, D] f32 or bf16, of one matrix each; what is added
// is not rounded. On the CPU, not differentiable.
void add_swiglu(at::Tensor& sum, const at::Tensor& rows, const Weight& gate_up, const Weight& down);

// The same where the tokens per expert stay on the device: segments end at `ends` [E] i32
// (kernels/ops/grouped_linear.h); rows past the last hold anything, and get a gradient that is
// anything.
at::Tensor grouped_swiglu(const at::Tensor& rows, const at::Tensor& gate_up, const at::Tensor& down,
                          const at::Tensor& ends);

}  // namespace moe::kernels
