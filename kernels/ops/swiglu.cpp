#include "kernels/ops/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden) {
    context->save_for_backward({hidden});
    return swiglu_forward(hidden);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {swiglu_backward(gradients[0], context->get_saved_variables()[0], {})};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& hidden) { return Swiglu::apply(hidden); }

at::Tensor swiglu_forward(const at::Tensor& hidden) { return swiglu_forward(hidden, {}); }

at::Tensor swiglu_forward(const at::Tensor& hidden, const at::Tensor& used) {
  return call<"moe::swiglu", decltype(swiglu_on<swiglu_forward_cpu>)>(hidden, used);
}

at::Tensor swiglu_backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                           const at::Tensor& used) {
  return call<"moe::swiglu_backward", decltype(swiglu_backward_on<swiglu_backward_cpu, false>)>(
      grad_out, hidden, used);
}

at::Tensor swiglu_backward_(const at::Tensor& grad_out, const at::Tensor& hidden,
                            const at::Tensor& used) {
  return call<"moe::swiglu_backward_", decltype(swiglu_backward_on<swiglu_backward_cpu, true>)>(
      grad_out, hidden, used);
}

}  // namespace moe::kernels
