#include "kernels/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tests/kernels/reference/cross_entropy.h"
#include "tests/support/catch.h"

using at::Tensor;

namespace {

Tensor targets_for(int64_t rows, int64_t vocabulary) {
  return at::arange(rows, at::kLong).mul(7).remainder(vocabulary);
}

// exp is within 2 units in the last place (1.2e-7 each) for an argument that is itself rounded by
// up to 1e-5 of a unit (a difference of two logits up to 100 in size, 2^-24 of it); the sum adds 16
// lanes of V / 16 terms. 2e-5 of a probability holds all of it.
constexpr double kShare = 2e-5;

void check(Tensor logits) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const Tensor target = targets_for(rows, vocabulary);
  Tensor expected = logits.clone();
  const double scale = 0.37;
  const Tensor each = at::empty({rows}, at::kDouble);
  moe::test::cross_entropy_reference({expected.data_ptr<float>(), target.const_data_ptr<int64_t>(),
                                      each.data_ptr<double>(), rows, vocabulary, scale});
  const double expected_loss = each.sum().item<double>();
  const double loss = moe::test::cross_entropy_sum(logits, target, scale);
  CHECK(loss == Approx(expected_loss).epsilon(1e-6).margin(1e-6 * static_cast<double>(rows)));
  CHECK(at::allclose(logits, expected, kShare, 1e-7));
}

}  // namespace

TEST_CASE("cross_entropy_ equals plain loops in double", "[kernels]") {
  at::manual_seed(8);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t vocabulary : {1, 2, 15, 16, 17, 64, 1001, 32000}) {
      check(at::randn({rows, vocabulary}) * 4);
    }
  }
  check(at::randn({9, 50}) * 40);    // saturated: one logit far above the others
  check(at::zeros({5, 33}));         // all equal
  check(at::full({3, 20}, -1e30F));  // far from zero, and equal
  Tensor masked = at::randn({4, 20});
  masked.narrow(1, 15, 5).fill_(-std::numeric_limits<float>::infinity());
  const Tensor target = at::zeros({4}, at::kLong);
  CHECK(std::isfinite(moe::test::cross_entropy_sum(masked, target, 1)));
  CHECK(masked.narrow(1, 15, 5).abs().sum().item<float>() == 0);
}

TEST_CASE("cross_entropy_ rounds the gradient into the first half of each row", "[kernels]") {
  at::manual_seed(9);
  for (const int64_t rows : {1, 9}) {
    for (const int64_t vocabulary : {1, 2, 511, 512, 513, 5001}) {
      CAPTURE(rows, vocabulary);
      const Tensor target = targets_for(rows, vocabulary);
      const Tensor loss = at::empty({rows}, at::kDouble),
                   wide_loss = at::empty({rows}, at::kDouble);
      Tensor logits = at::randn({rows, vocabulary}) * 4, wide = logits.clone();
      moe::kernels::cross_entropy_(wide, target, 0.37, wide_loss, /*in_bf16=*/false);
      const Tensor gradient =
          moe::kernels::cross_entropy_(logits, target, 0.37, loss, /*in_bf16=*/true);
      CHECK(at::equal(loss, wide_loss));
      CHECK(gradient.is_alias_of(logits));
      CHECK(at::equal(gradient, wide.to(at::kBFloat16)));
    }
  }
}

TEST_CASE("cross_entropy_ hides nothing that is no number", "[kernels]") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t where : {0, 7, 16, 20}) {
      Tensor logits = at::zeros({2, 21});
      logits[1][where] = bad;
      CHECK_FALSE(
          std::isfinite(moe::test::cross_entropy_sum(logits, at::tensor({3, 4}, at::kLong), 1)));
      CHECK_FALSE(logits[1].isfinite().all().item<bool>());
    }
  }
}
