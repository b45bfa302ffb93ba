// Checks, picks the device, and is the one autograd node with closed-form gradients.

#include "kernels/ops/rms_norm.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cpu/rms_norm.h"
#include "kernels/ops/device.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Normed {
  Tensor y, scale;
};

Normed forward_on_gpu(const Tensor& x, const Tensor& weight, double epsilon) {
  const Tensor in = x.contiguous();
  Normed normed{at::empty_like(in), at::empty({x.size(0), 1}, weight.options())};
  rms_norm_forward_cuda(in.const_data_ptr(), weight.const_data_ptr<float>(),
                        normed.y.mutable_data_ptr(), normed.scale.data_ptr<float>(), x.size(0),
                        x.size(1), epsilon, x.scalar_type() == at::kBFloat16, current_stream(x));
  return normed;
}

variable_list backward_on_gpu(const Tensor& grad, const Tensor& x, const Tensor& weight,
                              const Tensor& scale) {
  const Tensor in = x.contiguous(), upstream = grad.contiguous();
  const int64_t rows = x.size(0), width = x.size(1);
  const Tensor strips = at::empty({rms_norm_strips(rows), width}, weight.options());
  const Tensor grad_x = at::empty_like(in), grad_weight = at::empty_like(weight);
  rms_norm_backward_cuda(
      {grad_x.mutable_data_ptr(), grad_weight.data_ptr<float>(), strips.data_ptr<float>()},
      upstream.const_data_ptr(), in.const_data_ptr(), weight.const_data_ptr<float>(),
      scale.const_data_ptr<float>(), rows, width, x.scalar_type() == at::kBFloat16,
      current_stream(x));
  return {grad_x, grad_weight, Tensor()};
}

// f64 on a GPU, for gradient checks, is LibTorch's as on the CPU.
bool has_gpu_kernel(const Tensor& x, const Tensor& weight) {
  return x.is_cuda() && weight.device() == x.device() && x.scalar_type() != at::kDouble &&
         weight.scalar_type() == at::kFloat;
}

// f64, for gradient checks, is LibTorch's.
bool has_cpu_kernel(const Tensor& x, const Tensor& weight) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
}

// -> y and the rows' scales [T, 1].
std::pair<Tensor, Tensor> forward_on_cpu(const Tensor& x, const Tensor& weight, double epsilon) {
  const Tensor in = x.contiguous(), by = weight.contiguous();
  const Tensor y = at::empty_like(in), scale = at::empty({x.size(0), 1}, in.options());
  rms_norm_forward_cpu(in.const_data_ptr<float>(), by.const_data_ptr<float>(), y.data_ptr<float>(),
                       scale.data_ptr<float>(), x.size(0), x.size(1), epsilon);
  return {y, scale};
}

variable_list backward_on_cpu(const Tensor& grad, const Tensor& x, const Tensor& weight,
                              const Tensor& scale) {
  const Tensor in = x.contiguous(), by = weight.contiguous(), upstream = grad.contiguous();
  const Tensor grad_x = at::empty_like(in), grad_weight = at::empty_like(by);
  rms_norm_backward_cpu(upstream.const_data_ptr<float>(), in.const_data_ptr<float>(),
                        by.const_data_ptr<float>(), scale.const_data_ptr<float>(),
                        grad_x.data_ptr<float>(), grad_weight.data_ptr<float>(), x.size(0),
                        x.size(1));
  return {grad_x, grad_weight, Tensor()};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double epsilon) {
    RECORD_USER_SCOPE("norm");
    if (has_gpu_kernel(x, weight)) {
      const Normed normed = forward_on_gpu(x, weight.contiguous(), epsilon);
      context->save_for_backward({x, weight, normed.scale});
      return normed.y;
    }
    if (has_cpu_kernel(x, weight)) {
      auto [y, row_scale] = forward_on_cpu(x, weight, epsilon);
      context->save_for_backward({x, weight, row_scale});
      return y;
    }
    const Tensor scale = at::rsqrt(x.pow(2).mean(-1, true).add_(epsilon));  // [T, 1]
    context->save_for_backward({x, weight, scale});
    return (x * scale).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2], &grad = gradients[0];
    if (has_gpu_kernel(x, weight)) {
      return backward_on_gpu(grad.to(x.scalar_type()), x, weight.contiguous(), scale);
    }
    if (has_cpu_kernel(x, weight)) {
      return backward_on_cpu(grad, x, weight, scale);
    }
    const Tensor normed = x * scale;
    const Tensor grad_weight = (grad * normed).sum(0);
    Tensor grad_normed = grad * weight;
    const Tensor mean = (grad_normed * normed).mean(-1, true);
    return {grad_normed.sub_(normed.mul_(mean)).mul_(scale), grad_weight, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && x.size(1) == weight.size(0), "x ", x.sizes(),
              ", weight ", weight.sizes());
  return RmsNorm::apply(x, weight, epsilon);
}

}  // namespace moe::kernels
