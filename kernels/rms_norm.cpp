// One autograd node with closed-form gradients. With n = x * r and r = 1 / sqrt(mean(x^2) +
// epsilon):
//   d weight = sum over rows of dy * n        d x = r * (dy * weight - n * mean(dy * weight * n))

#include "kernels/rms_norm.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace moe::kernels {

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const Tensor& weight,
                        double epsilon) {
    const Tensor scale = at::rsqrt(x.pow(2).mean(-1, true).add_(epsilon));  // [T, 1]
    context->save_for_backward({x, weight, scale});
    return (x * scale).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2], &grad = gradients[0];
    const Tensor normed = x * scale;
    const Tensor grad_weight = (grad * normed).sum(0);
    Tensor grad_normed = grad * weight;
    const Tensor mean = (grad_normed * normed).mean(-1, true);
    return {grad_normed.sub_(normed.mul_(mean)).mul_(scale), grad_weight, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0),
              "x ",
              x.sizes(),
              ", weight ",
              weight.sizes());
  return RmsNorm::apply(x, weight, epsilon);
}

}  // namespace moe::kernels
