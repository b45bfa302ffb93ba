#include "kernels/ops/cross_entropy.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

at::Tensor cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale,
                          const at::Tensor& loss, bool in_bf16) {
  call<"moe::cross_entropy_", decltype(cross_entropy_on<cross_entropy_cpu>)>(logits, target, scale,
                                                                             loss, in_bf16);
  return in_bf16 ? logits.view(at::kBFloat16).narrow(1, 0, logits.size(1)) : logits;
}

void logsumexp_argmax(const at::Tensor& logits, at::Tensor& logsumexp, at::Tensor& argmax) {
  std::tie(logsumexp, argmax) =
      call<"moe::logsumexp_argmax", decltype(logsumexp_argmax_on<logsumexp_cpu>)>(logits);
}

}  // namespace moe::kernels
