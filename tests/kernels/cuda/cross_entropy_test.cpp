#include "kernels/ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/kernels/reference/cross_entropy.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

struct Both {
  Tensor loss, gradient;
};

Both on_gpu(const Tensor& logits, const Tensor& target, double scale, bool in_bf16 = false) {
  const int64_t rows = logits.size(0);
  const Tensor there = to_gpu(logits), wanted = to_gpu(target);
  const Tensor loss = poisoned({rows}, at::kDouble);
  moe::kernels::cross_entropy_cuda({there.data_ptr<float>(), wanted.const_data_ptr<int64_t>(),
                                    loss.data_ptr<double>(), rows, logits.size(1), scale, in_bf16},
                                   stream_of(there));
  return {loss.cpu(), there.cpu()};
}

// A share is exp of a difference that is itself rounded by up to 2^-24 of the larger logit, 1e-5
// for logits of 100, and expf is within 2 units in the last place: 2e-5 holds both and the sum.
void check(const Tensor& logits) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const Tensor target = at::arange(rows, at::kLong).mul(7).remainder(vocabulary);
  const Tensor expected = logits.clone();
  const Tensor loss = at::empty({rows}, at::kDouble);
  moe::test::cross_entropy_reference({expected.data_ptr<float>(), target.const_data_ptr<int64_t>(),
                                      loss.data_ptr<double>(), rows, vocabulary, 0.37});
  const Both actual = on_gpu(logits, target, 0.37);
  CHECK(at::allclose(actual.loss, loss, 1e-6, 1e-6));
  CHECK(at::allclose(actual.gradient, expected, 2e-5, 1e-7));
}

}  // namespace

TEST_CASE("the loss kernel equals plain loops in double", "[kernels][gpu]") {
  MOE_NEED_GPU();
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

TEST_CASE("the loss kernel rounds the gradient into the first half of each row", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (const int64_t rows : {1, 3}) {
    for (const int64_t vocabulary : {1, 2, 31, 33, 64, 2052, 5001, 10000}) {
      CAPTURE(rows, vocabulary);
      const Tensor logits = at::randn({rows, vocabulary}) * 4;
      const Tensor target = at::arange(rows, at::kLong).mul(7).remainder(vocabulary);
      const Both wide = on_gpu(logits, target, 0.37), rounded = on_gpu(logits, target, 0.37, true);
      CHECK(at::equal(rounded.loss, wide.loss));
      CHECK(at::equal(rounded.gradient.view(at::kBFloat16).narrow(1, 0, vocabulary),
                      wide.gradient.to(at::kBFloat16)));
    }
  }
}

TEST_CASE("the loss kernel leaves masked logits without a share", "[kernels][gpu]") {
  MOE_NEED_GPU();
  Tensor logits = at::randn({4, 20});
  logits.narrow(1, 0, 5).fill_(-std::numeric_limits<float>::infinity());
  const Both actual = on_gpu(logits, at::full({4}, 7, at::kLong), 1);
  CHECK(actual.loss.isfinite().all().item<bool>());
  CHECK(actual.gradient.narrow(1, 0, 5).abs().sum().item<float>() == 0);
}

TEST_CASE("the loss kernel hides nothing that is no number", "[kernels][gpu]") {
  MOE_NEED_GPU();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t where : {0, 7, 16, 20}) {
      Tensor logits = at::zeros({2, 21});
      logits[1][where] = bad;
      const Both actual = on_gpu(logits, at::tensor({3, 4}, at::kLong), 1);
      CHECK(actual.loss[0].isfinite().item<bool>());
      CHECK_FALSE(actual.loss[1].isfinite().item<bool>());
      CHECK_FALSE(actual.gradient[1].isfinite().all().item<bool>());
    }
  }
}
