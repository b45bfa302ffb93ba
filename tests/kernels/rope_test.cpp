#include "kernels/ops/rope.h"

#include <ATen/ATen.h>

#include "tests/kernels/reference/rope.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;

namespace {

struct Tables {
  Tensor cosine, sine;
};

Tables tables(int64_t positions, int64_t half) {
  const Tensor angle = at::rand({positions, half}) * 6;
  return {angle.cos(), angle.sin()};
}

}  // namespace

TEST_CASE("rope turns the first heads and keeps the others", "[kernels]") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 16}) {
      const Tensor x = at::randn({tokens, 4 * 2 * half});
      const Tables table = tables(50, half);
      const Tensor position = at::arange(tokens, at::kInt).mul(13).remainder(50);
      const Tensor expected = at::empty_like(x);
      moe::test::rope_reference(x.const_data_ptr<float>(), table.cosine.const_data_ptr<float>(),
                                table.sine.const_data_ptr<float>(),
                                position.const_data_ptr<int32_t>(), expected.data_ptr<float>(),
                                {tokens, 4, 3, half, false});
      const Tensor actual = moe::kernels::rope(x, table.cosine, table.sine, position, 3, 2 * half);
      CHECK(at::allclose(actual, expected, 1e-6, 1e-6));  // two products and a sum below 8
      CHECK(at::equal(actual.narrow(1, 6 * half, 2 * half), x.narrow(1, 6 * half, 2 * half)));
    }
  }
}

TEST_CASE("rope's gradient is the finite difference, and turning back undoes turning",
          "[kernels]") {
  at::manual_seed(2);
  const Tables table = tables(9, 3);
  const Tensor position = at::tensor({0, 8, 4, 4}, at::kInt);
  const Tensor x = at::randn({4, 18}, at::kDouble), upstream = at::randn({4, 18}, at::kDouble);
  const auto loss = [&](const Tensor& in) {
    return (moe::kernels::rope(in, table.cosine, table.sine, position, 2, 6) * upstream).sum();
  };
  CHECK(moe::test::distance(moe::test::autograd(loss, x), moe::test::finite_difference(loss, x)) <
        moe::test::kGradTolerance);

  const Tensor there = at::empty_like(x), back = at::empty_like(x);
  const auto turn = [&](const Tensor& from, const Tensor& to, bool backwards) {
    moe::test::rope_reference(from.const_data_ptr<double>(), table.cosine.const_data_ptr<float>(),
                              table.sine.const_data_ptr<float>(),
                              position.const_data_ptr<int32_t>(), to.data_ptr<double>(),
                              {4, 3, 2, 3, backwards});
  };
  turn(x, there, false);
  turn(there, back, true);
  CHECK(at::allclose(back, x, 1e-6, 1e-6));  // the f32 tables: cos^2 + sin^2 = 1 to 2^-23
}

TEST_CASE("the halves of a node around rope have the numbers of rope", "[kernels]") {
  at::manual_seed(3);
  const Tables table = tables(9, 3);
  const Tensor position = at::tensor({0, 8, 4, 4}, at::kInt);
  const auto halves = [&](const Tensor& x, const Tensor& grad) {
    const Tensor there = x.clone();
    moe::kernels::rope_(there, table.cosine, table.sine, position, 3, 6);
    const Tensor heads = grad.view({4, 4, 6});
    return std::vector{there, moe::kernels::rope_backward(
                                  heads.narrow(1, 0, 2), heads.narrow(1, 2, 1),
                                  heads.narrow(1, 3, 1), table.cosine, table.sine, position)};
  };
  const Tensor x = at::randn({4, 24}), grad = at::randn({4, 24});
  const Tensor leaf = x.clone().requires_grad_(true);
  const Tensor y = moe::kernels::rope(leaf, table.cosine, table.sine, position, 3, 6);
  (y * grad).sum().backward();
  const auto actual = halves(x, grad);
  CHECK(at::equal(actual[0], y.detach()));
  CHECK(at::equal(actual[1], leaf.grad()));
}

TEST_CASE("rope refuses shapes that do not fit", "[kernels]") {
  const Tables table = tables(9, 3);
  const Tensor position = at::zeros({4}, at::kInt), x = at::zeros({4, 18});
  CHECK_THROWS(moe::kernels::rope(x, table.cosine, table.sine, position, 4, 6));
  CHECK_THROWS(moe::kernels::rope(x, table.cosine, table.sine, position, 2, 9));
  CHECK_THROWS(moe::kernels::rope(x, table.cosine, table.sine, position.to(at::kLong), 2, 6));
  CHECK_THROWS(
      moe::kernels::rope_(x.t().contiguous().t(), table.cosine, table.sine, position, 2, 6));
  const Tensor heads = at::zeros({4, 2, 6});
  CHECK_THROWS(moe::kernels::rope_backward(heads, heads.narrow(1, 0, 1), heads, table.cosine,
                                           table.sine, position));
}
