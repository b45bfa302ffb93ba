#pragma once
// RMSNorm as LLaMA has it: y = weight * x / sqrt(mean(x^2) + epsilon), over the last dimension.
// With r = 1 / sqrt(mean(x^2) + epsilon) and n = x * r:
//
//   d weight = sum over rows of dy * n        d x = r * (dy * weight - n * mean(dy * weight * n))

#include <algorithm>
#include <cstdint>
#include <utility>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// x [T, D], weight [D] -> [T, D]. Differentiable in both. Saved for backward: x, weight and one f32
// a row. On a GPU x may be bf16 under an f32 weight: computed in f32, y rounded once.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// Returns the same numbers, rounded to bf16 as they are written. A GPU reads the gradient in bf16.
at::Tensor rms_norm_to_bf16(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// x + added, both [T, D], and the norm of that sum, rounded to bf16 with `to_bf16`. Differentiable
// in all. Saved for backward: the sum, weight and one f32 a row. For x in f32 and `added` in the
// type of y a GPU sums, norms and rounds in one pass, and one pass writes the gradients of both x
// and `added`: the numbers are those of the operations one after the other.
std::pair<at::Tensor, at::Tensor> rms_norm_of_sum(const at::Tensor& x, const at::Tensor& added,
                                                  const at::Tensor& weight, double epsilon,
                                                  bool to_bf16);

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
  // On a GPU, of x in f32: what is normed is x + added, and is written to `sum`. Null: x is normed.
  const void* added = nullptr;  // [rows, width] in the type of y
  float* sum = nullptr;         // [rows, width]
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
  // On a GPU, where x in f32 is a sum: the gradient that comes to the sum from elsewhere, which
  // grad_x then has too, and grad_x in the type of grad. Null: none, and not asked for.
  const float* grad_sum = nullptr;  // [rows, width]
  void* grad_added = nullptr;       // [rows, width]
};
// On the CPU rows are summed in strips of one size, strip after strip; on a GPU in a fixed tree:
// both give the same numbers every time.
void rms_norm_backward_cpu(const RmsNormBackwardArgs& args);
void rms_norm_backward_cuda(const RmsNormBackwardArgs& args, void* stream);

}  // namespace moe::kernels
