#include "kernels/ops/adamw.h"

#include <c10/util/Exception.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

bool is_like(const at::Tensor& tensor, const at::Tensor& gradient, at::ScalarType type) {
  return tensor.scalar_type() == type && tensor.is_contiguous() &&
         tensor.sizes() == gradient.sizes() && tensor.device() == gradient.device();
}

}  // namespace

void adamw_(const at::Tensor& gradient, const at::Tensor& master, const at::Tensor& mean,
            const at::Tensor& square, const at::Tensor& weight, const AdamWSettings& settings,
            const at::Tensor& gradient_scale) {
  const bool is_bf16 = gradient.scalar_type() == at::kBFloat16;
  TORCH_CHECK((is_bf16 || gradient.scalar_type() == at::kFloat) && gradient.is_contiguous() &&
                  is_like(master, gradient, at::kFloat) && is_like(mean, gradient, at::kFloat) &&
                  is_like(square, gradient, at::kFloat) &&
                  (!weight.defined() || is_like(weight, gradient, at::kBFloat16)) &&
                  settings.t >= 1,
              "gradient ", gradient.toString(), gradient.sizes(), ", master ", master.toString(),
              master.sizes(), ", update ", settings.t);
  TORCH_CHECK(!gradient_scale.defined() ||
              (gradient_scale.numel() == 1 && gradient_scale.scalar_type() == at::kFloat &&
               gradient_scale.device() == gradient.device()));
  TORCH_CHECK(gradient.is_cuda(), "adamw_ runs on a GPU, the gradient is on ", gradient.device());
  const AdamWArgs args{gradient.const_data_ptr(),
                       is_bf16,
                       master.data_ptr<float>(),
                       mean.data_ptr<float>(),
                       square.data_ptr<float>(),
                       weight.defined() ? weight.mutable_data_ptr() : nullptr,
                       gradient_scale.defined() ? gradient_scale.const_data_ptr<float>() : nullptr,
                       gradient.numel()};
  cuda_functions().adamw(args, settings, current_stream(gradient));
}

}  // namespace moe::kernels
