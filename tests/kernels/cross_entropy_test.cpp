#include "tests/kernels/reference/cross_entropy.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("cross_entropy_ equals the log-softmax in double, with its gradient", "[kernels]") {
  check_losses(
      [](const Tensor& logits, const Tensor& target, bool in_bf16) {
        Tensor memory = logits.clone();
        const Tensor loss = at::empty({logits.size(0)}, at::kDouble);
        const Tensor gradient = cross_entropy_(memory, target, kLossScale, loss, in_bf16);
        CHECK(gradient.is_alias_of(memory));
        return LossResults{loss, gradient};
      },
      {0, 1, 31, 33}, 32'000);
}

TEST_CASE("logsumexp_argmax equals LibTorch's in double, the first of equal logits", "[kernels]") {
  check_logsumexp(
      [](const Tensor& logits) {
        LogSumExpResults results;
        logsumexp_argmax(logits, results.logsumexp, results.argmax);
        return results;
      },
      {0, 1, 31, 33}, 32'000);
}
