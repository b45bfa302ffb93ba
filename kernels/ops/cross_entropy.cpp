#include "kernels/ops/cross_entropy.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

double cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale) {
  const at::Tensor wanted = target.to(logits.device()).contiguous();
  const at::Tensor loss = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  cross_entropy_(logits, wanted, scale, loss, /*in_bf16=*/false);
  return loss.sum().item<double>();
}

at::Tensor cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale,
                          const at::Tensor& loss, bool in_bf16) {
  static const Operation<decltype(cross_entropy_on<cross_entropy_cpu>)> operation(
      "moe::cross_entropy_");
  operation(logits, target, scale, loss, in_bf16);
  return in_bf16 ? logits.view(at::kBFloat16).narrow(1, 0, logits.size(1)) : logits;
}

}  // namespace moe::kernels
