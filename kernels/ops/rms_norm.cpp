// Checks, picks the device, and is the one autograd node with closed-form gradients.

#include "kernels/ops/rms_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The types that a kernel serves. f64, for gradient checks, is LibTorch's on every device.
bool has_kernel(const Tensor& x, const Tensor& weight) {
  const bool is_bf16_on_gpu = x.is_cuda() && x.scalar_type() == at::kBFloat16;
  return weight.device() == x.device() && weight.scalar_type() == at::kFloat &&
         (x.scalar_type() == at::kFloat || is_bf16_on_gpu);
}

struct Normed {
  Tensor y, scale;  // [T, D] and [T, 1]
};

// Whether it writes y of x in f32, and reads its gradient, in bf16.
bool rounds_y(const Tensor& x, at::ScalarType type) {
  return x.is_cuda() && x.scalar_type() == at::kFloat && type == at::kBFloat16;
}

Normed forward_by_kernel(const Tensor& given, const Tensor& given_weight, double epsilon,
                         at::ScalarType type, const Tensor& added = {}, const Tensor& sum = {}) {
  const Tensor x = given.contiguous(), weight = given_weight.contiguous();
  const Normed normed{at::empty_like(x, type), at::empty({x.size(0), 1}, weight.options())};
  RmsNormForwardArgs args{x.const_data_ptr(),
                          weight.const_data_ptr<float>(),
                          normed.y.mutable_data_ptr(),
                          normed.scale.data_ptr<float>(),
                          x.size(0),
                          x.size(1),
                          epsilon,
                          x.scalar_type() == at::kBFloat16,
                          x.scalar_type() == at::kFloat && type == at::kBFloat16};
  if (added.defined()) {
    args.added = added.const_data_ptr();
    args.sum = sum.data_ptr<float>();
  }
  if (x.is_cuda()) {
    cuda_functions().rms_norm_forward(args, current_stream(x));
  } else {
    rms_norm_forward_cpu(args);
  }
  return normed;
}

struct Gradients {
  Tensor x, weight;
  Tensor added = {};  // with grad_sum alone: the gradient of x in the type of that of y
};

Gradients backward_by_kernel(const Tensor& given_grad, const Tensor& given,
                             const Tensor& given_weight, const Tensor& scale,
                             const Tensor& grad_sum = {}) {
  const Tensor x = given.contiguous(), weight = given_weight.contiguous();
  const bool grad_is_bf16 = rounds_y(x, given_grad.scalar_type());
  const Tensor grad = (grad_is_bf16 ? given_grad : given_grad.to(x.scalar_type())).contiguous();
  Gradients gradients{at::empty_like(x), at::empty_like(weight)};
  RmsNormBackwardArgs args{grad.const_data_ptr(),
                           x.const_data_ptr(),
                           weight.const_data_ptr<float>(),
                           scale.const_data_ptr<float>(),
                           gradients.x.mutable_data_ptr(),
                           gradients.weight.data_ptr<float>(),
                           x.size(0),
                           x.size(1),
                           x.scalar_type() == at::kBFloat16};
  args.grad_is_bf16 = grad_is_bf16;
  if (grad_sum.defined()) {
    gradients.added = grad_is_bf16 ? at::empty_like(grad) : gradients.x;
    args.grad_sum = grad_sum.const_data_ptr<float>();
    args.grad_added = grad_is_bf16 ? gradients.added.mutable_data_ptr() : nullptr;
  }
  if (x.is_cuda()) {
    const Tensor strips = at::empty({rms_norm_strips(args.rows), args.width}, weight.options());
    args.strips = strips.data_ptr<float>();
    cuda_functions().rms_norm_backward(args, current_stream(x));
  } else {
    rms_norm_backward_cpu(args);
  }
  return gradients;
}

bool trains(const Tensor& x, const Tensor& weight) {
  return at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double epsilon, at::ScalarType type) {
    RECORD_USER_SCOPE("norm");
    if (has_kernel(x, weight)) {
      const Normed normed = forward_by_kernel(x, weight, epsilon, type);
      context->save_for_backward({x, weight, normed.scale});
      return normed.y;
    }
    const Tensor scale = at::rsqrt(x.pow(2).mean(-1, true).add_(epsilon));  // [T, 1]
    context->save_for_backward({x, weight, scale});
    return (x * scale).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2], &grad = gradients[0];
    if (has_kernel(x, weight)) {
      const Gradients by_kernel = backward_by_kernel(grad, x, weight, scale);
      return {by_kernel.x, by_kernel.weight, Tensor(), Tensor()};
    }
    const Tensor normed = x * scale;
    const Tensor grad_weight = (grad * normed).sum(0);
    Tensor grad_normed = grad * weight;
    const Tensor mean = (grad_normed * normed).mean(-1, true);
    return {grad_normed.sub_(normed.mul_(mean)).mul_(scale), grad_weight, Tensor(), Tensor()};
  }
};

// What the kernel sums as it norms: x in f32 on a GPU, and `added` in the type of y.
bool fuses_sum(const Tensor& x, const Tensor& added, const Tensor& weight, bool to_bf16) {
  return x.is_cuda() && x.scalar_type() == at::kFloat && has_kernel(x, weight) &&
         added.scalar_type() == (to_bf16 ? at::kBFloat16 : at::kFloat);
}

struct RmsNormOfSum : torch::autograd::Function<RmsNormOfSum> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& added,
                               const Tensor& weight, double epsilon) {
    RECORD_USER_SCOPE("norm");
    const Tensor sum = at::empty(x.sizes(), x.options());
    const Normed normed =
        forward_by_kernel(x, weight, epsilon, added.scalar_type(), added.contiguous(), sum);
    context->save_for_backward({sum, weight, normed.scale});
    context->saved_data["type"] = added.scalar_type();
    context->set_materialize_grads(false);
    return {sum, normed.y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &sum = saved[0], &weight = saved[1], &scale = saved[2];
    const Tensor &grad_sum = gradients[0], &grad_y = gradients[1];
    const auto type = context->saved_data["type"].toScalarType();
    if (!grad_y.defined()) {
      return {grad_sum, grad_sum.defined() ? grad_sum.to(type) : Tensor(), Tensor(), Tensor()};
    }
    const Gradients by_kernel =
        backward_by_kernel(grad_y, sum, weight, scale,
                           grad_sum.defined() ? grad_sum.contiguous() : at::zeros_like(sum));
    return {by_kernel.x, by_kernel.added, by_kernel.weight, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0), "x ", x.sizes(),
              ", weight ", weight.sizes());
  if (!trains(x, weight) && has_kernel(x, weight)) {  // a node costs as much as a short row
    RECORD_USER_SCOPE("norm");
    return forward_by_kernel(x, weight, epsilon, x.scalar_type()).y;
  }
  return RmsNorm::apply(x, weight, epsilon, x.scalar_type());
}

Tensor rms_norm_to_bf16(const Tensor& x, const Tensor& weight, double epsilon) {
  if (x.is_cpu() && has_kernel(x, weight) && !trains(x, weight)) {
    RECORD_USER_SCOPE("norm");
    return forward_by_kernel(x, weight, epsilon, at::kBFloat16).y;
  }
  return has_kernel(x, weight) && rounds_y(x, at::kBFloat16)
             ? RmsNorm::apply(x, weight, epsilon, at::kBFloat16)
             : rms_norm(x, weight, epsilon).to(at::kBFloat16);
}

std::pair<Tensor, Tensor> rms_norm_of_sum(const Tensor& x, const Tensor& added,
                                          const Tensor& weight, double epsilon, bool to_bf16) {
  TORCH_CHECK(x.dim() == 2 && added.sizes() == x.sizes() && added.device() == x.device() &&
                  weight.dim() == 1 && x.size(1) == weight.size(0),
              "x ", x.sizes(), ", added ", added.toString(), added.sizes(), ", weight ",
              weight.sizes());
  if (fuses_sum(x, added, weight, to_bf16)) {
    const variable_list both = RmsNormOfSum::apply(x, added, weight, epsilon);
    return {both[0], both[1]};
  }
  const Tensor sum = x + added;
  return {sum, to_bf16 ? rms_norm_to_bf16(sum, weight, epsilon) : rms_norm(sum, weight, epsilon)};
}

}  // namespace moe::kernels
