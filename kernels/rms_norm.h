#pragma once
// RMSNorm as LLaMA has it: y = weight * x / sqrt(mean(x^2) + epsilon), over the last dimension.

#include <torch/types.h>

namespace moe::kernels {

// x [T, D], weight [D] -> [T, D]. Differentiable in both. Saved for backward: x, weight and one f32
// a row.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon);

}  // namespace moe::kernels
