#pragma once
// SwiGLU's activation: out = silu(gate) * up, with gate and up side by side in one row as one
// matrix product left them.
//
//   hidden [R, 2F] = [gate | up]      out [R, F] = gate * sigmoid(gate) * up
//   d gate = d out * up * s * (1 + gate * (1 - s))      d up = d out * gate * s        with s =
//   sigmoid(gate)
//
// f32, f64 and bf16 (computed in f32); contiguous rows. Nothing but `hidden` is needed for
// backward.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

at::Tensor swiglu_forward(const at::Tensor& hidden);  // [R, 2F] -> [R, F]
at::Tensor swiglu_backward(const at::Tensor& grad_out,
                           const at::Tensor& hidden);  // [R, F], [R, 2F] -> [R, 2F]

// The same of the first used[-1] rows, `used` [n] i32 on the device of `hidden` (the ends of
// kernels/ops/grouped_linear.h): the rows after them come out as anything. Nothing is read back.
at::Tensor swiglu_forward(const at::Tensor& hidden, const at::Tensor& used);
at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                           const at::Tensor& used);

// swiglu_forward, differentiable; keeps `hidden`.
at::Tensor swiglu(const at::Tensor& hidden);  // [R, 2F] -> [R, F]

// The reference: plain loops in double. hidden, grad_hidden [rows, 2 * width]; out, grad_out [rows,
// width].
void swiglu_forward_reference(const float* hidden, float* out, int64_t rows, int64_t width);
void swiglu_backward_reference(const float* grad_out, const float* hidden, float* grad_hidden,
                               int64_t rows, int64_t width);

// The CPU's: f32, or bf16 as its bits, computed in f32.
template <typename Number>
void swiglu_forward_cpu(const Number* hidden, Number* out, int64_t rows, int64_t width);
template <typename Number>
void swiglu_backward_cpu(const Number* grad_out, const Number* hidden, Number* grad_hidden,
                         int64_t rows, int64_t width);

// The CUDA entry points (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, dtype by
// flag, a cudaStream_t. Only rows before *used are computed; null: all.
void swiglu_forward_cuda(const void* hidden, void* out, int64_t rows, int64_t width,
                         const int32_t* used, bool is_bf16, void* stream);
void swiglu_backward_cuda(const void* grad_out, const void* hidden, void* grad_hidden, int64_t rows,
                          int64_t width, const int32_t* used, bool is_bf16, void* stream);

}  // namespace moe::kernels
