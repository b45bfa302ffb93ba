#include "kernels/ops/rms_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

// Returns y, the scale of each row, and the sum if `added` is given.
std::tuple<Tensor, Tensor, Tensor> norm_forward(const Tensor& x, const Tensor& weight,
                                                const OptionalTensor& added, double epsilon,
                                                bool to_bf16) {
  RECORD_USER_SCOPE("norm");
  return call<"moe::rms_norm", decltype(rms_norm_on<rms_norm_forward_cpu>)>(x, weight, epsilon,
                                                                            to_bf16, added);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  // Returns y, and x + added if `added` is given.
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               const OptionalTensor& added, double epsilon, bool to_bf16) {
    const auto [y, scale, sum] = norm_forward(x, weight, added, epsilon, to_bf16);
    context->set_materialize_grads(false);
    context->save_for_backward({added ? sum : x, weight, scale});
    context->saved_data["added_type"] = added ? added->scalar_type() : x.scalar_type();
    return added ? variable_list{y, sum} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto added_type = context->saved_data["added_type"].toScalarType();
    const bool has_sum = gradients.size() == 2;
    Tensor grad_x = has_sum ? gradients[1] : Tensor(), grad_weight, grad_added;
    if (gradients[0].defined()) {
      std::tie(grad_x, grad_weight, grad_added) =
          call<"moe::rms_norm_backward", decltype(rms_norm_backward_on<rms_norm_backward_cpu>)>(
              gradients[0], saved[0], saved[1], saved[2], grad_x);
    }
    if (has_sum && grad_x.defined() && !grad_added.defined()) {
      grad_added = grad_x.to(added_type);
    }
    return {grad_x, grad_weight, grad_added, Tensor(), Tensor()};
  }
};

variable_list norm(const Tensor& x, const Tensor& weight, const OptionalTensor& added,
                   double epsilon, bool to_bf16) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0) &&
                  (!added || (added->sizes() == x.sizes() && added->device() == x.device())),
              "x ", x.sizes(), ", weight ", weight.sizes());
  if (at::GradMode::is_enabled() &&
      (x.requires_grad() || weight.requires_grad() || (added && added->requires_grad()))) {
    return RmsNorm::apply(x, weight, added, epsilon, to_bf16);
  }
  const auto [y, scale, sum] = norm_forward(x, weight, added, epsilon, to_bf16);
  return {y, sum};  // an autograd node costs as much as a short row
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, bool to_bf16) {
  return norm(x, weight, {}, epsilon, to_bf16)[0];
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& added, const Tensor& weight,
                                       double epsilon, bool to_bf16) {
  const variable_list both = norm(x, weight, added, epsilon, to_bf16);
  return {both[1], both[0]};
}

}  // namespace moe::kernels
