#include "kernels/ops/swiglu.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

struct Swiglu : torch::autograd::Function<Swiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden) {
    context->save_for_backward({hidden});
    return swiglu_forward(hidden, {});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {swiglu_backward(gradients[0], context->get_saved_variables()[0], {})};
  }
};

}  // namespace

Tensor swiglu(const Tensor& hidden) { return Swiglu::apply(hidden); }

Tensor swiglu_forward(const Tensor& hidden, const Tensor& used) {
  return call<"moe::swiglu", decltype(swiglu_on<swiglu_forward_cpu>)>(hidden, used);
}

Tensor swiglu_backward(const Tensor& grad_out, const Tensor& hidden, const Tensor& used) {
  return call<"moe::swiglu_backward", decltype(swiglu_backward_on<swiglu_backward_cpu, false>)>(
      grad_out, hidden, used);
}

Tensor swiglu_backward_(const Tensor& grad_out, const Tensor& hidden, const Tensor& used) {
  return call<"moe::swiglu_backward_", decltype(swiglu_backward_on<swiglu_backward_cpu, true>)>(
      grad_out, hidden, used);
}

}  // namespace moe::kernels
