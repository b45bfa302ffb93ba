#pragma once
// RMSNorm as LLaMA has it: y = weight * x / sqrt(mean(x^2) + epsilon), over the last dimension.
// With r = 1 / sqrt(mean(x^2) + epsilon) and n = x * r:
//
//   d weight = sum over rows of dy * n        d x = r * (dy * weight - n * mean(dy * weight * n))

#include <algorithm>
#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// x [T, D], weight [D] -> [T, D]. Differentiable in both. Saved for backward: x, weight and one f32
// a row. On a GPU x may be bf16 under an f32 weight: computed in f32, y rounded once.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// The same numbers rounded to bf16. A GPU rounds those of f32 as it writes, and reads the gradient
// in bf16.
at::Tensor rms_norm_to_bf16(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// Plain memory. x, y, grad, grad_x [rows, width] f32, on a GPU also bf16, all of them or y and grad
// alone; weight, grad_weight [width]; scale [rows] is r.
struct RmsNormForwardArgs {
  const void* x;
  const float* weight;
  void* y;
  float* scale;
  int64_t rows, width;
  double epsilon;
  bool is_bf16;
  bool y_is_bf16 = false;  // of x in f32
};
void rms_norm_forward_cpu(const RmsNormForwardArgs& args);
void rms_norm_forward_cuda(const RmsNormForwardArgs& args, void* stream);

// Strips of rows whose parts of the weight's gradient are summed apart on a GPU.
constexpr int64_t rms_norm_strips(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 64); }

struct RmsNormBackwardArgs {
  const void *grad, *x;
  const float *weight, *scale;
  void* grad_x;
  float* grad_weight;
  int64_t rows, width;
  bool is_bf16;
  float* strips = nullptr;    // [rms_norm_strips(rows), width], scratch of the GPU
  bool grad_is_bf16 = false;  // of x in f32
};
// On the CPU rows are summed in strips of one size, strip after strip; on a GPU in a fixed tree:
// both give the same numbers every time.
void rms_norm_backward_cpu(const RmsNormBackwardArgs& args);
void rms_norm_backward_cuda(const RmsNormBackwardArgs& args, void* stream);

}  // namespace moe::kernels
