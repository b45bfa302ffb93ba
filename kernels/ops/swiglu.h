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

// The same gradient, and grad_out, contiguous, becomes swiglu_forward(hidden, used), bit for bit:
// the product behind the activation wants that for its weight's gradient. So the activation need
// not be kept, which at R rows takes 2 R F bytes of bf16 a layer (361 MB at 16,384 x 11,008), and
// costs no pass of its own: of each output element 12 bytes are moved, where computing it apart
// moves 16 and keeping it 10. `used` may be undefined: all rows.
at::Tensor swiglu_backward_(const at::Tensor& grad_out, const at::Tensor& hidden,
                            const at::Tensor& used);

// swiglu_forward, differentiable; keeps `hidden`.
at::Tensor swiglu(const at::Tensor& hidden);  // [R, 2F] -> [R, F]

// Plain memory: hidden, grad_hidden [rows, 2 * width]; out, grad_out [rows, width]; all f32, or all
// bf16. On a GPU only rows before *used are computed; null: all rows.
struct SwigluForwardArgs {
  const void* hidden;
  void* out;
  int64_t rows, width;
  bool is_bf16;
  const int32_t* used = nullptr;
};
void swiglu_forward_cpu(const SwigluForwardArgs& args);
void swiglu_forward_cuda(const SwigluForwardArgs& args, void* stream);

struct SwigluBackwardArgs {
  const void *grad_out, *hidden;
  void* grad_hidden;
  int64_t rows, width;
  bool is_bf16;
  const int32_t* used = nullptr;
  void* out = nullptr;  // [rows, width] the activation, which may lie where grad_out does; or none
};
void swiglu_backward_cpu(const SwigluBackwardArgs& args);
void swiglu_backward_cuda(const SwigluBackwardArgs& args, void* stream);

}  // namespace moe::kernels
