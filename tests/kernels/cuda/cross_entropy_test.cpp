#include "kernels/ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/support/card.h"

using at::Tensor;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_card;

namespace {

struct Both {
  Tensor nll, gradient;
};

Both on_card(const Tensor& logits, const Tensor& target, double scale) {
  const int64_t rows = logits.size(0);
  const Tensor there = to_card(logits), wanted = to_card(target);
  const Tensor nll = poisoned({rows}, at::kDouble);
  moe::kernels::softmax_nll_cuda(there.data_ptr<float>(), wanted.const_data_ptr<int64_t>(),
                                 nll.data_ptr<double>(), rows, logits.size(1), scale,
                                 stream_of(there));
  return {nll.cpu(), there.cpu()};
}

// A share is exp of a difference that is itself rounded by up to 2^-24 of the larger logit, 1e-5
// for logits of 100, and expf is within 2 units in the last place: 2e-5 holds both and the sum.
void check(const Tensor& logits) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const Tensor target = at::arange(rows, at::kLong).mul(7).remainder(vocabulary);
  const Tensor expected = logits.clone();
  const double nll = moe::kernels::softmax_nll_reference(
      expected.data_ptr<float>(), target.const_data_ptr<int64_t>(), rows, vocabulary, 0.37);
  const Both actual = on_card(logits, target, 0.37);
  CHECK(actual.nll.sum().item<double>() ==
        Approx(nll).epsilon(1e-6).margin(1e-6 * static_cast<double>(rows)));
  CHECK(at::allclose(actual.gradient, expected, 2e-5, 1e-7));
}

}  // namespace

TEST_CASE("the loss kernel equals plain loops in double", "[kernels][gpu]") {
  MOE_NEED_CARD();
  at::manual_seed(8);
  for (const int64_t rows : {0, 1, 3}) {
    for (const int64_t vocabulary : {1, 2, 31, 33, 64, 1001, 2052, 5000}) {
      CAPTURE(rows, vocabulary);
      check(at::randn({rows, vocabulary}) * 4);
    }
  }
  check(at::randn({9, 50}) * 40);    // saturated: one logit far above the others
  check(at::zeros({5, 33}));         // all equal
  check(at::full({3, 20}, -1e30F));  // far from zero, and equal
}

TEST_CASE("the loss kernel leaves masked logits without a share", "[kernels][gpu]") {
  MOE_NEED_CARD();
  Tensor logits = at::randn({4, 20});
  logits.narrow(1, 0, 5).fill_(-std::numeric_limits<float>::infinity());
  const Both actual = on_card(logits, at::full({4}, 7, at::kLong), 1);
  CHECK(actual.nll.isfinite().all().item<bool>());
  CHECK(actual.gradient.narrow(1, 0, 5).abs().sum().item<float>() == 0);
}

TEST_CASE("the loss kernel hides nothing that is no number", "[kernels][gpu]") {
  MOE_NEED_CARD();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t where : {0, 7, 16, 20}) {
      Tensor logits = at::zeros({2, 21});
      logits[1][where] = bad;
      const Both actual = on_card(logits, at::tensor({3, 4}, at::kLong), 1);
      CHECK(actual.nll[0].isfinite().item<bool>());
      CHECK_FALSE(actual.nll[1].isfinite().item<bool>());
      CHECK_FALSE(actual.gradient[1].isfinite().all().item<bool>());
    }
  }
}
