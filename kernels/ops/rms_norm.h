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

// The reference: plain loops in double, f32 or f64. x, y, grad, grad_x [rows, width]; weight,
// grad_weight [width]; scale [rows] is r.
template <typename Number>
void rms_norm_forward_reference(const Number* x, const Number* weight, Number* y, Number* scale,
                                int64_t rows, int64_t width, double epsilon);
template <typename Number>
void rms_norm_backward_reference(const Number* grad, const Number* x, const Number* weight,
                                 const Number* scale, Number* grad_x, Number* grad_weight,
                                 int64_t rows, int64_t width);

// The CUDA entry points (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t; x, y and their gradients f32 or bf16.
void rms_norm_forward_cuda(const void* x, const float* weight, void* y, float* scale, int64_t rows,
                           int64_t width, double epsilon, bool is_bf16, void* stream);

// Strips of rows whose parts of the weight's gradient are summed apart.
constexpr int64_t rms_norm_strips(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 64); }

// Where the gradients go; `strips` [rms_norm_strips(rows), width] f32 is room for sums.
struct RmsNormGradients {
  void* x;        // [rows, width]
  float* weight;  // [width]
  float* strips;
};
void rms_norm_backward_cuda(const RmsNormGradients& to, const void* grad, const void* x,
                            const float* weight, const float* scale, int64_t rows, int64_t width,
                            bool is_bf16, void* stream);

}  // namespace moe::kernels
