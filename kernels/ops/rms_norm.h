#pragma once
// RMSNorm of LLaMA over the last dimension: y = weight * x / sqrt(mean(x^2) + epsilon).
// With r = 1 / sqrt(mean(x^2) + epsilon) and n = x * r:
//
//   d weight = sum over rows of dy * n        d x = r * (dy * weight - n * mean(dy * weight * n))

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

// Returns y [T, D] in the dtype of x, or rounded to bf16 with `to_bf16`. x [T, D], weight [D].
// Differentiable in both. Autograd saves x, weight and one f32 per row. On a GPU x may be bf16 with
// an f32 weight: computed in f32, rounded once. A GPU reads the gradient of a bf16 y in bf16.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    bool to_bf16 = false);

// Returns x + added, both [T, D], and the norm of that sum, in bf16 with `to_bf16`. Differentiable
// in all three tensors. Autograd saves the sum, weight and one f32 per row. The results equal those
// of separate operations. For f32 x and `added` in the dtype of y, a GPU computes them in one pass,
// and the gradients of x and `added` in another.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& added,
                                               const at::Tensor& weight, double epsilon,
                                               bool to_bf16);

struct RmsNormForwardArgs {
  const void* x;        // [rows, width] f32; bf16 on a GPU with is_bf16
  const float* weight;  // [width]
  void* y;              // [rows, width] in the dtype of x, or bf16 with y_is_bf16
  float* scale;         // [rows], r
  int64_t rows, width;
  double epsilon;
  bool is_bf16;
  bool y_is_bf16 = false;  // with f32 x
  // GPU with f32 x: norms x + added and writes it to `sum`. Null: norms x.
  const void* added = nullptr;  // [rows, width] in the dtype of y
  float* sum = nullptr;         // [rows, width]
};
void rms_norm_forward_cpu(const RmsNormForwardArgs& args);
void rms_norm_forward_cuda(const RmsNormForwardArgs& args, void* stream);

// Returns the number of strips of rows over which a GPU first sums the weight gradient.
constexpr int64_t rms_norm_strips(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 64); }

struct RmsNormBackwardArgs {
  const void *grad, *x;  // [rows, width]
  const float *weight, *scale;
  void* grad_x;        // [rows, width] in the dtype of x
  float* grad_weight;  // [width]
  int64_t rows, width;
  bool is_bf16;
  float* strips = nullptr;    // [rms_norm_strips(rows), width], GPU scratch
  bool grad_is_bf16 = false;  // with f32 x
  // GPU with f32 x that is a sum; null: none.
  const float* grad_sum = nullptr;  // [rows, width], gradient of other operations, added to grad_x
  void* grad_added = nullptr;       // [rows, width], grad_x in the dtype of grad
};
// Sums in a fixed order. CPU: over strips of equal size, strip after strip. GPU: in a fixed tree.
void rms_norm_backward_cpu(const RmsNormBackwardArgs& args);
void rms_norm_backward_cuda(const RmsNormBackwardArgs& args, void* stream);

}  // namespace moe::kernels
