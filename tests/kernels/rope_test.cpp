#include "kernels/ops/rope.h"

#include "tests/kernels/reference/rope.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("rope rotates the first heads and keeps the others, with its gradient", "[kernels]") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 16}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(tokens, half, static_cast<int>(type));
        const RopeCase one(tokens, 4, 3, half);
        const Tensor x = one.x.to(type).requires_grad_(true), upstream = at::randn_like(x);
        const Tensor y = rope(x, one.cosine, one.sine, one.position, 3, 2 * half);
        CHECK(is_close_rotation(y, one.expected(one.x, false)));
        CHECK(at::equal(y.narrow(1, 6 * half, 2 * half), x.narrow(1, 6 * half, 2 * half)));
        const Tensor in_place = x.detach().clone();
        rope_(in_place, one.cosine, one.sine, one.position, 3, 2 * half);
        CHECK(at::equal(in_place, y));
        (y * upstream).sum().backward();
        CHECK(is_close_rotation(x.grad(), one.expected(upstream, true)));
        const Tensor heads = upstream.view({tokens, 4, 2 * half});
        CHECK(at::equal(rope_backward(heads.narrow(1, 0, 2), heads.narrow(1, 2, 1),
                                      heads.narrow(1, 3, 1), one.cosine, one.sine, one.position),
                        x.grad()));
      }
    }
  }
}

TEST_CASE("rope's gradient is the finite difference", "[kernels]") {
  at::manual_seed(2);
  const RopeCase one(4, 3, 2, 3);
  const Tensor x = at::randn({4, 18}, at::kDouble), upstream = at::randn({4, 18}, at::kDouble);
  const auto loss = [&](const Tensor& in) {
    return (rope(in, one.cosine, one.sine, one.position, 2, 6) * upstream).sum();
  };
  CHECK(distance(autograd(loss, x), finite_difference(loss, x)) < kGradTolerance);
}

TEST_CASE("rope refuses shapes that do not fit", "[kernels]") {
  const RopeCase one(4, 3, 2, 3);
  const auto& [rotated, x, position, cosine, sine] = one;
  CHECK_THROWS(rope(x, cosine, sine, position, 4, 6));
  CHECK_THROWS(rope(x, cosine, sine, position, 2, 9));
  CHECK_THROWS(rope(x, cosine, sine, position.to(at::kLong), 2, 6));
  CHECK_THROWS(rope_(x.t().contiguous().t(), cosine, sine, position, 2, 6));
  const Tensor heads = at::zeros({4, 2, 6});
  CHECK_THROWS(rope_backward(heads, heads.narrow(1, 0, 1), heads, cosine, sine, position));
}
