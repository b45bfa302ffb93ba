#include "kernels/ops/logsumexp.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

void logsumexp_argmax(const at::Tensor& logits, at::Tensor& logsumexp, at::Tensor& argmax) {
  static const Operation<decltype(logsumexp_argmax_on<logsumexp_cpu>)> operation(
      "moe::logsumexp_argmax");
  std::tie(logsumexp, argmax) = operation(logits);
}

}  // namespace moe::kernels
