#include "kernels/ops/adamw.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

void adamw_(const at::Tensor& gradient, const at::Tensor& master, const at::Tensor& mean,
            const at::Tensor& square, const at::Tensor& weight, const AdamWSettings& settings,
            const at::Tensor& gradient_scale) {
  call<"moe::adamw_", decltype(adamw_on<adamw_cuda>)>(
      gradient, master, mean, square, weight, gradient_scale, settings.lr, settings.beta1,
      settings.beta2, settings.eps, settings.weight_decay, settings.t);
}

void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first) {
  call<"moe::stochastic_round", decltype(stochastic_round_on<stochastic_round_cpu>)>(
      in, out, static_cast<int64_t>(key), first);
}

}  // namespace moe::kernels
