#pragma once
// All experts' feed-forward products over rows that lie sorted by expert: for the rows of expert e
//
//   y = down[e] ( silu(x gate[e]^T) * (x up[e]^T) )^T        (P1 section 2; LLaMA's FFN)
//
// A dense FFN is the case E = 1.

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace moe::kernels {

// rows [R, D], expert order; gate_up [E, 2F, D], gate rows first; down [E, D, F]; rows_per_expert
// [E] with a sum <= R. Returns [R, D]; rows past the sum are 0. Differentiable in all three
// tensors: an expert without rows gets gradient 0. Saved for backward: the inputs and the hidden
// products [sum, 2F]; the activation is computed again.
torch::Tensor grouped_swiglu(const torch::Tensor& rows,
                             const torch::Tensor& gate_up,
                             const torch::Tensor& down,
                             const std::vector<int64_t>& rows_per_expert);

// The same where the loads stay on the device: segments end at `ends` [E] i32
// (kernels/grouped_linear.h); rows past the last hold anything, and get a gradient that is
// anything.
torch::Tensor grouped_swiglu(const torch::Tensor& rows,
                             const torch::Tensor& gate_up,
                             const torch::Tensor& down,
                             const torch::Tensor& ends);

}  // namespace moe::kernels
