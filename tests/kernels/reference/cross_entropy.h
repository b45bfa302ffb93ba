#pragma once
// Cases of the cross-entropy and of the log-sum-exp for the kernels of any device, against
// LibTorch's operations in double. A `Loss` takes logits [n, V] f32, target [n] and whether the
// gradient is rounded to bf16; a `LogSumExp` takes logits. Both run the kernel and return its
// results on the CPU.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/cross_entropy.h"
#include "tests/support/catch.h"

namespace moe::test {

constexpr double kLossScale = 0.37;

struct LossResults {
  at::Tensor loss, gradient;
};
struct LogSumExpResults {
  at::Tensor logsumexp, argmax;
};

// A probability is exp of a difference that is itself rounded by up to 2^-24 of the larger logit,
// 1e-5 for logits of 100, and exp is within 2 units in the last place: 2e-5 holds both and the sum.
template <typename Loss>
void check_loss(Loss run, const at::Tensor& logits) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  CAPTURE(rows, vocabulary);
  const at::Tensor target = at::arange(rows, at::kLong).mul(7).remainder(vocabulary);
  const at::Tensor wide = logits.to(at::kDouble), column = target.unsqueeze(1);
  const at::Tensor loss = at::log_softmax(wide, 1).gather(1, column).squeeze(1).neg();
  const at::Tensor one_hot = at::zeros_like(wide).scatter(1, column, 1);
  const LossResults actual = run(logits, target, /*in_bf16=*/false);
  CHECK(at::allclose(actual.loss, loss, 1e-6, 1e-6));
  CHECK(at::allclose(actual.gradient.to(at::kDouble), (at::softmax(wide, 1) - one_hot) * kLossScale,
                     2e-5, 1e-7));
  const LossResults rounded = run(logits, target, /*in_bf16=*/true);
  CHECK(at::equal(rounded.loss, actual.loss));
  CHECK(at::equal(rounded.gradient, actual.gradient.to(at::kBFloat16)));
}

template <typename Loss>
void check_losses(Loss run, const std::vector<int64_t>& rows, int64_t largest_vocabulary) {
  at::manual_seed(8);
  for (const int64_t count : rows) {
    for (const int64_t vocabulary :
         {1, 2, 15, 16, 17, 31, 33, 64, 511, 512, 513, 1001, 2052, 5001, 10'000, 32'000}) {
      if (vocabulary <= largest_vocabulary) {
        check_loss(run, at::randn({count, vocabulary}).mul_(4));
      }
    }
  }
  check_loss(run, at::randn({9, 50}) * 40);   // saturated: one logit far above the others
  check_loss(run, at::zeros({5, 33}));        // all equal
  check_loss(run, at::full({3, 20}, -1e4F));  // far from zero, and equal
  at::Tensor masked = at::randn({4, 20});     // the targets are not masked
  masked.narrow(1, 2, 5).fill_(-std::numeric_limits<float>::infinity());
  masked.narrow(1, 15, 5).fill_(-std::numeric_limits<float>::infinity());
  check_loss(run, masked);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t where : {0, 7, 16, 20}) {
      at::Tensor logits = at::zeros({2, 21});
      logits[1][where] = bad;
      const LossResults actual = run(logits, at::tensor({3, 4}, at::kLong), false);
      CHECK(actual.loss[0].isfinite().template item<bool>());
      CHECK_FALSE(actual.loss[1].isfinite().template item<bool>());
      CHECK_FALSE(actual.gradient[1].isfinite().all().template item<bool>());
    }
  }
}

template <typename LogSumExp>
void check_logsumexp(LogSumExp run, const std::vector<int64_t>& rows, int64_t largest_vocabulary) {
  at::manual_seed(5);
  for (const int64_t count : rows) {
    for (const int64_t vocabulary : {1, 15, 16, 17, 31, 33, 64, 1001, 2052, 5000, 32'000}) {
      if (vocabulary > largest_vocabulary) {
        continue;
      }
      CAPTURE(count, vocabulary);
      const at::Tensor logits = at::randn({count, vocabulary}) * 6;
      const LogSumExpResults actual = run(logits);
      // exp to 2 units in the last place, a short sum per lane, one rounding of the result, which
      // is below 64: 64 * 2^-24 = 4e-6.
      CHECK(at::allclose(actual.logsumexp.to(at::kDouble), logits.to(at::kDouble).logsumexp(1),
                         1e-6, 5e-6));
      CHECK(at::equal(actual.argmax, logits.argmax(1)));
    }
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  at::Tensor logits = at::zeros({5, 2600});
  logits[0][7] = logits[0][31] = logits[0][2599] = 2;  // ties: the first
  logits[1][20] = std::numeric_limits<float>::quiet_NaN();
  logits[2][3] = kInfinity;
  logits[3].fill_(-kInfinity);
  logits[3][2000] = -5;
  logits[4].fill_(-kInfinity);
  const LogSumExpResults actual = run(logits);
  CHECK(at::equal(actual.logsumexp.isfinite(), at::tensor({1, 0, 0, 1, 0}).to(at::kBool)));
  CHECK(actual.logsumexp[3].template item<float>() == -5);
  for (const auto& [row, expected] : {std::pair{0, 7}, {3, 2000}, {4, 0}}) {
    CHECK(actual.argmax[row].template item<int64_t>() == expected);
  }
}

}  // namespace moe::test
