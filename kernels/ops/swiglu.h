#pragma once
// SwiGLU activation: out = silu(gate) * up, for gate and up concatenated in each row.
//
//   hidden [R, 2F] = [gate | up]      out [R, F] = gate * sigmoid(gate) * up
//   with s = sigmoid(gate):
//   d gate = d out * up * s * (1 + gate * (1 - s))      d up = d out * gate * s
//
// f32, f64 and bf16 (computed in f32). Backward needs only `hidden`.

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

// Returns out [R, F]. Differentiable; autograd saves `hidden` [R, 2F].
at::Tensor swiglu(const at::Tensor& hidden);

// The functions below are not differentiable. `used` [n] i32 on the device of `hidden`, such as
// Segments::ends (kernels/ops/linear.h): only the first used[n - 1] rows are computed, the others
// are undefined. Undefined: all rows.
at::Tensor swiglu_forward(const at::Tensor& hidden, const at::Tensor& used);  // out [R, F]
at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                           const at::Tensor& used);  // grad_hidden [R, 2F]

// Returns the result of swiglu_backward(), and overwrites contiguous grad_out with the bits of
// swiglu_forward(hidden, used), for the weight gradient of the following product. Saving the
// activation in forward instead takes 2 R F bytes of bf16 per layer (361 MB at 16,384 x 11,008).
at::Tensor swiglu_backward_(const at::Tensor& grad_out, const at::Tensor& hidden,
                            const at::Tensor& used);

// All tensors f32, or all bf16. `used`: a GPU computes only rows before *used; null: all rows.
struct SwigluForwardArgs {
  const void* hidden;  // [rows, 2 * width]
  void* out;           // [rows, width]
  int64_t rows, width;
  bool is_bf16;
  const int32_t* used = nullptr;
};
void swiglu_forward_cpu(const SwigluForwardArgs& args);
void swiglu_forward_cuda(const SwigluForwardArgs& args, void* stream);

struct SwigluBackwardArgs {
  const void *grad_out, *hidden;  // [rows, width], [rows, 2 * width]
  void* grad_hidden;              // [rows, 2 * width]
  int64_t rows, width;
  bool is_bf16;
  const int32_t* used = nullptr;
  void* out = nullptr;  // [rows, width] the activation, may be grad_out; null: not written
};
void swiglu_backward_cpu(const SwigluBackwardArgs& args);
void swiglu_backward_cuda(const SwigluBackwardArgs& args, void* stream);

}  // namespace moe::kernels
