#include "kernels/ops/adamw.h"

#include <ATen/ATen.h>

#include "tests/support/catch.h"

using at::Tensor;
using moe::kernels::adamw_;

TEST_CASE("adamw_ has the numbers of LibTorch's fused kernel", "[kernels]") {
  at::manual_seed(3);
  const moe::kernels::AdamWNumbers base{1e-2, 0.9, 0.99, 1e-8, 0.1, 1};
  for (const int64_t count : {0, 1, 31, 33, 100}) {
    Tensor master = at::randn({count}), mean = at::zeros({count}), square = at::zeros({count});
    Tensor weight = at::zeros({count}, at::kBFloat16);
    std::vector<Tensor> theirs{master.clone()}, their_mean{mean.clone()},
        their_square{square.clone()};
    for (int64_t t = 1; t <= 4; ++t) {
      const Tensor gradient = at::randn({count});
      auto numbers = base;
      numbers.t = t;
      adamw_(gradient, master, mean, square, weight, numbers, at::full({1}, 0.5F));
      at::_fused_adamw_(theirs, {gradient * 0.5}, their_mean, their_square, {},
                        {at::full({}, static_cast<float>(t))}, base.lr, base.beta1, base.beta2,
                        base.weight_decay, base.eps, false, false);
    }
    // Both round about 8 times an update, 2^-24 of numbers up to 4, and a step is 1e-2 of order 1.
    CHECK(at::allclose(master, theirs[0], 1e-6, 2e-6));
    CHECK(at::allclose(mean, their_mean[0], 1e-5, 1e-6));
    CHECK(at::allclose(square, their_square[0], 1e-5, 1e-7));
    CHECK(at::equal(weight, master.to(at::kBFloat16)));
  }
}

TEST_CASE("adamw_ refuses tensors that do not belong together", "[kernels]") {
  const Tensor wide = at::zeros({4}), narrow = at::zeros({4}, at::kBFloat16);
  const moe::kernels::AdamWNumbers numbers;
  adamw_(narrow, wide.clone(), wide.clone(), wide.clone(), narrow.clone(), numbers, {});
  CHECK_THROWS(adamw_(narrow, narrow, wide, wide, narrow, numbers, {}));
  CHECK_THROWS(adamw_(narrow, at::zeros({5}), wide, wide, narrow, numbers, {}));
  CHECK_THROWS(adamw_(narrow, wide, wide, wide, wide, numbers, {}));
}
