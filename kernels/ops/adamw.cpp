#include "kernels/ops/adamw.h"

#include <torch/library.h>

#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

// AdamW by LibTorch, for f32 weights. Scales the gradient in place.
void adamw_by_operations(const Tensor& gradient, const Tensor& master, const Tensor& mean,
                         const Tensor& square, const OptionalTensor& weight,
                         const OptionalTensor& gradient_scale, double lr, double beta1,
                         double beta2, double eps, double weight_decay, int64_t t) {
  TORCH_CHECK(!has_tensor(weight), "AdamW on a CPU takes no bf16 weight");
  if (has_tensor(gradient_scale)) {
    gradient.mul_(*gradient_scale);
  }
  at::_fused_adamw_({master}, {gradient}, {mean}, {square}, /*max_exp_avg_sqs=*/{},
                    {at::scalar_tensor(t, at::kFloat)}, lr, beta1, beta2, weight_decay, eps,
                    /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

TORCH_LIBRARY_IMPL(moe, CPU, library) { library.impl("adamw_", &adamw_by_operations); }

void adamw_(const Tensor& gradient, const Tensor& master, const Tensor& mean, const Tensor& square,
            const Tensor& weight, const AdamWSettings& settings, const Tensor& gradient_scale) {
  call<"moe::adamw_", decltype(adamw_by_operations)>(
      gradient, master, mean, square, weight, gradient_scale, settings.lr, settings.beta1,
      settings.beta2, settings.eps, settings.weight_decay, settings.t);
}

void stochastic_round(const Tensor& in, const Tensor& out, uint64_t key, int64_t first) {
  call<"moe::stochastic_round", decltype(stochastic_round_on<stochastic_round_cpu>)>(
      in, out, static_cast<int64_t>(key), first);
}

}  // namespace moe::kernels
