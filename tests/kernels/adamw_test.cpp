#include "kernels/ops/adamw.h"

#include <ATen/ATen.h>

#include "tests/kernels/reference/adamw.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using at::Tensor;

TEST_CASE("the reference of adamw_ has the numbers of LibTorch's fused kernel", "[kernels]") {
  at::manual_seed(3);
  const moe::kernels::AdamWSettings base{1e-2, 0.9, 0.99, 1e-8, 0.1, 1};
  for (const int64_t count : {0, 1, 31, 33, 100}) {
    Tensor master = at::randn({count}), mean = at::zeros({count}), square = at::zeros({count});
    Tensor weight = at::zeros({count}, at::kBFloat16);
    std::vector<Tensor> theirs{master.clone()}, their_mean{mean.clone()},
        their_square{square.clone()};
    for (int64_t t = 1; t <= 4; ++t) {
      const Tensor gradient = at::randn({count});
      auto settings = base;
      settings.t = t;
      const float scale = 0.5F;
      moe::test::adamw_reference(
          {gradient.const_data_ptr(), /*gradient_is_bf16=*/false, master.data_ptr<float>(),
           mean.data_ptr<float>(), square.data_ptr<float>(), weight.data_ptr(), &scale, count},
          settings);
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

TEST_CASE("adamw_ refuses tensors on the CPU, where there is no such kernel", "[kernels]") {
  const Tensor wide = at::zeros({4});
  CHECK_THROWS_WITH(moe::kernels::adamw_(wide, wide, wide, wide, {}, {}, {}),
                    moe::test::contains_text("'CPU' backend"));
}
