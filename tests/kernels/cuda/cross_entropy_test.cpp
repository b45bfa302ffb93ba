#include "tests/kernels/reference/cross_entropy.h"

#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("the loss kernel equals the log-softmax in double, with its gradient", "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_losses(
      [](const Tensor& logits, const Tensor& target, bool in_bf16) {
        const int64_t rows = logits.size(0), vocabulary = logits.size(1);
        const Tensor memory = to_gpu(logits), targets = to_gpu(target);
        const Tensor loss = poisoned({rows}, at::kDouble);
        cross_entropy_cuda({memory.data_ptr<float>(), targets.const_data_ptr<int64_t>(),
                            loss.data_ptr<double>(), rows, vocabulary, kLossScale, in_bf16},
                           stream_of(memory));
        const Tensor gradient = memory.cpu();
        return LossResults{
            loss.cpu(), in_bf16 ? gradient.view(at::kBFloat16).narrow(1, 0, vocabulary) : gradient};
      },
      {0, 1, 3}, 10'000);
}

TEST_CASE("the logsumexp kernel equals LibTorch's in double, the first of equal logits",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_logsumexp(
      [](const Tensor& logits) {
        const Tensor memory = to_gpu(logits), sum = poisoned({logits.size(0)}, at::kFloat);
        const Tensor argmax = poisoned({logits.size(0)}, at::kLong);
        logsumexp_cuda({memory.const_data_ptr<float>(), sum.data_ptr<float>(),
                        argmax.data_ptr<int64_t>(), logits.size(0), logits.size(1)},
                       stream_of(memory));
        return LogSumExpResults{sum.cpu(), argmax.cpu()};
      },
      {0, 1, 3}, 5'000);
}
