// Checks, picks the device. On the CPU this is LibTorch's own vectorised silu; its cost beside the
// two matrix products of an expert is small.

#include "kernels/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/stream.h"

namespace moe::kernels {

namespace {

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden) {
    context->save_for_backward({hidden});
    return swiglu_forward(hidden);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {swiglu_backward(gradients[0], context->get_saved_variables()[0])};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& hidden) { return Swiglu::apply(hidden); }

at::Tensor swiglu_forward(const at::Tensor& hidden) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) % 2 == 0, "hidden is ", hidden.sizes());
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  if (hidden.is_cuda()) {
    const at::Tensor input = hidden.contiguous();
    at::Tensor out = at::empty({rows, width}, hidden.options());
    swiglu_forward_cuda(input.data_ptr(),
                        out.data_ptr(),
                        rows,
                        width,
                        hidden.scalar_type() == at::kBFloat16,
                        current_stream(hidden));
    return out;
  }
  if (hidden.scalar_type() == at::kBFloat16) {
    return swiglu_forward(hidden.to(at::kFloat)).to(at::kBFloat16);
  }
  return at::silu(hidden.narrow(1, 0, width)).mul_(hidden.narrow(1, width, width));
}

at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden) {
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  TORCH_CHECK(
      grad_out.size(0) == rows && grad_out.size(1) == width, "grad_out is ", grad_out.sizes());
  if (!hidden.is_cuda() && hidden.scalar_type() == at::kBFloat16) {
    return swiglu_backward(grad_out.to(at::kFloat), hidden.to(at::kFloat)).to(at::kBFloat16);
  }
  at::Tensor grad = at::empty(hidden.sizes(), hidden.options());
  if (hidden.is_cuda()) {
    swiglu_backward_cuda(grad_out.contiguous().data_ptr(),
                         hidden.contiguous().data_ptr(),
                         grad.data_ptr(),
                         rows,
                         width,
                         hidden.scalar_type() == at::kBFloat16,
                         current_stream(hidden));
    return grad;
  }
  const at::Tensor gate = hidden.narrow(1, 0, width);
  grad.narrow(1, 0, width)
      .copy_(at::silu_backward(at::mul(grad_out, hidden.narrow(1, width, width)), gate));
  at::Tensor grad_up = grad.narrow(1, width, width);
  at::mul_out(grad_up, grad_out, at::silu(gate));
  return grad;
}

}  // namespace moe::kernels
