// Checks, picks the device. f64, for gradient checks, is LibTorch's.

#include "kernels/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/cuda_functions.h"

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

// Where the number of rows to compute stands; null: all of them.
const int32_t* last_of(const at::Tensor& used) {
  return used.defined() ? used.const_data_ptr<int32_t>() + used.numel() - 1 : nullptr;
}

}  // namespace

at::Tensor swiglu(const at::Tensor& hidden) { return Swiglu::apply(hidden); }

at::Tensor swiglu_forward(const at::Tensor& hidden) { return swiglu_forward(hidden, {}); }

at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden) {
  return swiglu_backward(grad_out, hidden, {});
}

at::Tensor swiglu_forward(const at::Tensor& hidden, const at::Tensor& used) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) % 2 == 0, "hidden is ", hidden.sizes());
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  if (hidden.scalar_type() == at::kDouble) {
    return at::silu(hidden.narrow(1, 0, width)).mul_(hidden.narrow(1, width, width));
  }
  const at::Tensor in = hidden.contiguous();
  at::Tensor out = at::empty({rows, width}, hidden.options());
  const SwigluForwardArgs args{
      in.const_data_ptr(), out.data_ptr(), rows, width, hidden.scalar_type() == at::kBFloat16,
      last_of(used)};
  if (hidden.is_cuda()) {
    cuda_functions().swiglu_forward(args, current_stream(hidden));
  } else {
    swiglu_forward_cpu(args);
  }
  return out;
}

namespace {

// With `out` also the activation, contiguous; it may be grad_out.
at::Tensor gradient_of_hidden(const at::Tensor& grad_out, const at::Tensor& hidden,
                              const at::Tensor& used, const at::Tensor& out) {
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  TORCH_CHECK(grad_out.size(0) == rows && grad_out.size(1) == width, "grad_out is ",
              grad_out.sizes());
  at::Tensor grad = at::empty(hidden.sizes(), hidden.options());
  if (hidden.scalar_type() == at::kDouble) {
    const at::Tensor gate = hidden.narrow(1, 0, width), up = hidden.narrow(1, width, width);
    grad.narrow(1, 0, width).copy_(at::silu_backward(at::mul(grad_out, up), gate));
    grad.narrow(1, width, width).copy_(at::mul(grad_out, at::silu(gate)));
    if (out.defined()) {
      out.copy_(swiglu_forward(hidden));
    }
    return grad;
  }
  const at::Tensor in = hidden.contiguous(), grad_in = grad_out.contiguous();
  const SwigluBackwardArgs args{grad_in.const_data_ptr(),
                                in.const_data_ptr(),
                                grad.data_ptr(),
                                rows,
                                width,
                                hidden.scalar_type() == at::kBFloat16,
                                last_of(used),
                                out.defined() ? out.data_ptr() : nullptr};
  if (hidden.is_cuda()) {
    cuda_functions().swiglu_backward(args, current_stream(hidden));
  } else {
    swiglu_backward_cpu(args);
  }
  return grad;
}

}  // namespace

at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                           const at::Tensor& used) {
  return gradient_of_hidden(grad_out, hidden, used, {});
}

at::Tensor swiglu_backward_(const at::Tensor& grad_out, const at::Tensor& hidden,
                            const at::Tensor& used) {
  TORCH_CHECK(grad_out.is_contiguous(), "grad_out has strides ", grad_out.strides());
  return gradient_of_hidden(grad_out, hidden, used, grad_out);
}

}  // namespace moe::kernels
