#include "kernels/ops/swiglu.h"

#include <ATen/ATen.h>

#include <limits>

#include "tests/kernels/reference/swiglu.h"
#include "tests/support/catch.h"

using at::Tensor;

namespace {

// Awkward shapes: none, one, around a warp, widths that no vector divides.
const std::vector<std::pair<int64_t, int64_t>> kShapes{{0, 8},   {1, 1},  {1, 7},   {31, 33},
                                                       {33, 31}, {5, 64}, {128, 96}};

Tensor awkward_hidden(int64_t rows, int64_t width) {
  Tensor hidden = at::randn({rows, 2 * width}, at::kFloat) * 3;
  if (hidden.numel() > 1) {
    hidden.flatten()[0] = 90.0F;   // sigmoid saturates at 1
    hidden.flatten()[1] = -90.0F;  // and at 0
  }
  return hidden;
}

// Both sides are a handful of f32 operations on values below 300: 8 roundings of 2^-24 relative.
constexpr double kTolerance = 8.0 / (1 << 24);

bool close(const Tensor& actual, const Tensor& expected) {
  return at::allclose(actual, expected, kTolerance, kTolerance * 300);
}

}  // namespace

TEST_CASE("swiglu equals its plain-loop reference on awkward shapes", "[kernels]") {
  at::manual_seed(1);
  for (const auto& [rows, width] : kShapes) {
    CAPTURE(rows, width);
    const Tensor hidden = awkward_hidden(rows, width), grad_out = at::randn({rows, width});
    Tensor out = at::empty({rows, width}), grad = at::empty({rows, 2 * width});
    moe::test::swiglu_forward_reference(hidden.const_data_ptr<float>(),
                                        out.mutable_data_ptr<float>(), rows, width);
    moe::test::swiglu_backward_reference(grad_out.const_data_ptr<float>(),
                                         hidden.const_data_ptr<float>(),
                                         grad.mutable_data_ptr<float>(), rows, width);
    CHECK(close(moe::kernels::swiglu_forward(hidden), out));
    CHECK(close(moe::kernels::swiglu_backward(grad_out, hidden, {}), grad));
  }
}

TEST_CASE("swiglu's backward leaves the activation of forward where the gradient was",
          "[kernels]") {
  at::manual_seed(6);
  std::vector<std::pair<int64_t, int64_t>> shapes = kShapes;
  shapes.emplace_back(3, 1300);
  for (const auto& [rows, width] : shapes) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      CAPTURE(rows, width, static_cast<int>(type));
      const Tensor hidden = awkward_hidden(rows, width).to(type);
      const Tensor grad_out = at::randn({rows, width}).to(type), given = grad_out.clone();
      const Tensor grad = moe::kernels::swiglu_backward_(given, hidden, {});
      CHECK(at::equal(given, moe::kernels::swiglu_forward(hidden)));
      CHECK(at::equal(grad, moe::kernels::swiglu_backward(grad_out, hidden, {})));
    }
  }
  CHECK_THROWS(moe::kernels::swiglu_backward_(at::ones({2, 3}).t(), at::ones({3, 4}), {}));
}

TEST_CASE("swiglu of bf16 is that of f32, rounded once", "[kernels]") {
  at::manual_seed(4);
  for (const auto& [rows, width] : kShapes) {
    CAPTURE(rows, width);
    const Tensor hidden = awkward_hidden(rows, width).to(at::kBFloat16);
    const Tensor grad_out = at::randn({rows, width}).to(at::kBFloat16);
    const Tensor wide = hidden.to(at::kFloat);
    CHECK(at::equal(moe::kernels::swiglu_forward(hidden),
                    moe::kernels::swiglu_forward(wide).to(at::kBFloat16)));
    CHECK(at::equal(
        moe::kernels::swiglu_backward(grad_out, hidden, {}),
        moe::kernels::swiglu_backward(grad_out.to(at::kFloat), wide, {}).to(at::kBFloat16)));
  }
  Tensor bad = at::zeros({1, 32});
  bad[0][3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(moe::kernels::swiglu_forward(bad)[0][3].isnan().item<bool>());
  CHECK(moe::kernels::swiglu_forward(bad.to(at::kBFloat16))[0][3].isnan().item<bool>());
}

TEST_CASE("swiglu's backward is the finite difference of its forward", "[kernels]") {
  at::manual_seed(2);
  const Tensor hidden = at::randn({3, 10}, at::kDouble), grad_out = at::randn({3, 5}, at::kDouble);
  const Tensor grad = moe::kernels::swiglu_backward(grad_out, hidden, {});
  constexpr double kStep =
      1e-6;  // central difference: error of order step^2, rounding of order 1e-16 / step
  for (int64_t index = 0; index < hidden.numel(); ++index) {
    Tensor above = hidden.clone(), below = hidden.clone();
    above.flatten()[index] += kStep;
    below.flatten()[index] -= kStep;
    const Tensor change = moe::kernels::swiglu_forward(above) - moe::kernels::swiglu_forward(below);
    const double expected = (change * grad_out).sum().item<double>() / (2 * kStep);
    CHECK(grad.flatten()[index].item<double>() == Approx(expected).margin(1e-8));
  }
}

TEST_CASE("swiglu on CUDA equals the reference", "[kernels][gpu]") {
  if (!at::hasCUDA()) {
    MOE_SKIP("no GPU");
  }
  at::manual_seed(3);
  for (const auto& [rows, width] : kShapes) {
    const Tensor hidden = awkward_hidden(rows, width), grad_out = at::randn({rows, width});
    CHECK(close(moe::kernels::swiglu_forward(hidden.cuda()).cpu(),
                moe::kernels::swiglu_forward(hidden)));
    CHECK(close(moe::kernels::swiglu_backward(grad_out.cuda(), hidden.cuda(), {}).cpu(),
                moe::kernels::swiglu_backward(grad_out, hidden, {})));
  }
}
