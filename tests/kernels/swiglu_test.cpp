#include "tests/kernels/reference/swiglu.h"

#include <limits>

#include "tests/support/gradcheck.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("swiglu equals the formula in double on awkward shapes, with its gradient", "[kernels]") {
  at::manual_seed(1);
  const auto run = [](const Tensor& hidden, const Tensor& grad_out) {
    const Tensor given = grad_out.clone(), same_grad = swiglu_backward_(given, hidden, {});
    return SwigluResults{swiglu_forward(hidden), swiglu_backward(grad_out, hidden, {}), given,
                         same_grad};
  };
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 8}, {1, 1}, {1, 7}, {31, 33}, {33, 31}, {5, 64}, {128, 96}, {3, 1300}}) {
    check_swiglu(run, rows, width);
    // bf16 is f32, rounded once.
    const Tensor hidden = at::randn({rows, 2 * width}).to(at::kBFloat16);
    const Tensor grad_out = at::randn({rows, width}).to(at::kBFloat16);
    const Tensor wide = hidden.to(at::kFloat), wide_grad = grad_out.to(at::kFloat);
    CHECK(at::equal(swiglu_forward(hidden), swiglu_forward(wide).to(at::kBFloat16)));
    CHECK(at::equal(swiglu_backward(grad_out, hidden, {}),
                    swiglu_backward(wide_grad, wide, {}).to(at::kBFloat16)));
  }
  CHECK_THROWS(swiglu_backward_(at::ones({2, 3}).t(), at::ones({3, 4}), {}));
  Tensor bad = at::zeros({1, 32});
  bad[0][3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(swiglu_forward(bad)[0][3].isnan().item<bool>());
  CHECK(swiglu_forward(bad.to(at::kBFloat16))[0][3].isnan().item<bool>());
}

TEST_CASE("swiglu's gradient is the finite difference", "[kernels]") {
  at::manual_seed(2);
  const Tensor hidden = at::randn({3, 10}, at::kDouble), upstream = at::randn({3, 5}, at::kDouble);
  const auto loss = [&](const Tensor& x) { return (swiglu(x) * upstream).sum(); };
  CHECK(distance(autograd(loss, hidden), finite_difference(loss, hidden)) < kGradTolerance);
}
