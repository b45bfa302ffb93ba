#include "kernels/ops/rms_norm.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/kernels/reference/rms_norm.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;

namespace {

Tensor plain(const Tensor& x, const Tensor& weight, double epsilon) {
  return weight * (x / at::sqrt((x * x).mean(-1, true) + epsilon));
}

}  // namespace

TEST_CASE("rms_norm equals the formula, values and gradients", "[kernels]") {
  at::manual_seed(1);
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {1, 1}, {1, 33}, {31, 7}, {33, 64}}) {
    CAPTURE(rows, width);
    const Tensor x = at::randn({rows, width}, at::kDouble).requires_grad_(true);
    const Tensor weight = at::randn({width}, at::kDouble).requires_grad_(true);
    const Tensor upstream = at::randn({rows, width}, at::kDouble);
    const Tensor fast = moe::kernels::rms_norm(x, weight, 1e-5), slow = plain(x, weight, 1e-5);
    CHECK(at::allclose(fast, slow, 1e-12, 1e-12));  // f64, at most 64 terms of 2^-53
    const auto actual = torch::autograd::grad({(fast * upstream).sum()}, {x, weight});
    const auto expected = torch::autograd::grad({(slow * upstream).sum()}, {x, weight});
    CHECK(at::allclose(actual[0], expected[0], 1e-11, 1e-11));
    CHECK(at::allclose(actual[1], expected[1], 1e-11, 1e-11));
  }
}

TEST_CASE("rms_norm of a row of zeros is zero with a finite gradient", "[kernels]") {
  const Tensor x = at::zeros({2, 8}).requires_grad_(true);
  const Tensor out = moe::kernels::rms_norm(x, at::ones({8}), 1e-6);
  CHECK(out.abs().sum().item<double>() == 0);
  CHECK(torch::autograd::grad({out.sum()}, {x})[0].isfinite().all().item<bool>());
}

TEST_CASE("rms_norm_of_sum on the CPU is an addition and a norm", "[kernels]") {
  at::manual_seed(6);
  const Tensor x = at::randn({5, 8}), added = at::randn({5, 8}), weight = at::randn({8});
  for (const bool to_bf16 : {false, true}) {
    const Tensor other = added.to(to_bf16 ? at::kBFloat16 : at::kFloat);
    const auto [sum, y] = moe::kernels::rms_norm_of_sum(x, other, weight, 1e-5, to_bf16);
    const Tensor norm = moe::kernels::rms_norm(x + other, weight, 1e-5);
    CHECK(at::equal(sum, x + other));
    CHECK(at::equal(y, to_bf16 ? norm.to(at::kBFloat16) : norm));
  }
  CHECK_THROWS(moe::kernels::rms_norm_of_sum(x, added.narrow(0, 0, 4), weight, 1e-5, false));
}

TEST_CASE("the reference of rms_norm has the gradients of its finite differences", "[kernels]") {
  at::manual_seed(5);
  const Tensor x = at::randn({3, 5}, at::kDouble), weight = at::randn({5}, at::kDouble);
  const Tensor upstream = at::randn({3, 5}, at::kDouble);
  const auto forward = [&](const Tensor& in, const Tensor& by, const Tensor& scale) {
    const Tensor y = at::empty_like(in);
    moe::test::rms_norm_forward_reference(in.const_data_ptr<double>(), by.const_data_ptr<double>(),
                                          y.data_ptr<double>(), scale.data_ptr<double>(), 3, 5,
                                          1e-3);
    return (y * upstream).sum();
  };
  const Tensor scale = at::empty({3}, at::kDouble), unused = at::empty({3}, at::kDouble);
  forward(x, weight, scale);
  const Tensor grad_x = at::empty_like(x), grad_weight = at::empty_like(weight);
  moe::test::rms_norm_backward_reference(
      upstream.const_data_ptr<double>(), x.const_data_ptr<double>(),
      weight.const_data_ptr<double>(), scale.const_data_ptr<double>(), grad_x.data_ptr<double>(),
      grad_weight.data_ptr<double>(), 3, 5);
  const auto of_x = [&](const Tensor& in) { return forward(in, weight, unused); };
  const auto of_weight = [&](const Tensor& by) { return forward(x, by, unused); };
  CHECK(moe::test::distance(grad_x, moe::test::finite_difference(of_x, x)) <
        moe::test::kGradTolerance);
  CHECK(moe::test::distance(grad_weight, moe::test::finite_difference(of_weight, weight)) <
        moe::test::kGradTolerance);
}

TEST_CASE("rms_norm in f32 is the formula in f64, rounded", "[kernels]") {
  at::manual_seed(2);
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {1, 1}, {31, 33}, {129, 7}, {300, 64}}) {
    CAPTURE(rows, width);
    const Tensor x = at::randn({rows, width}).requires_grad_(true);
    const Tensor weight = at::randn({width}).requires_grad_(true);
    const Tensor wide_x = x.detach().to(at::kDouble).requires_grad_(true);
    const Tensor wide_weight = weight.detach().to(at::kDouble).requires_grad_(true);
    const Tensor upstream = at::randn({rows, width});
    const Tensor fast = moe::kernels::rms_norm(x, weight, 1e-5);
    const Tensor slow = plain(wide_x, wide_weight, 1e-5);
    CHECK(at::allclose(fast.to(at::kDouble), slow, 1e-5, 1e-6));  // a few roundings of 2^-24
    const auto actual = torch::autograd::grad({fast}, {x, weight}, {upstream});
    const auto expected =
        torch::autograd::grad({slow}, {wide_x, wide_weight}, {upstream.to(at::kDouble)});
    CHECK(at::allclose(actual[0].to(at::kDouble), expected[0], 1e-4, 1e-5));
    CHECK(at::allclose(actual[1].to(at::kDouble), expected[1], 1e-4, 1e-4));  // sums of 300 terms
  }
}

TEST_CASE("rms_norm to bf16 is the rounded one, with gradients and without", "[kernels]") {
  at::manual_seed(7);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 33, 512, 1030}) {
      CAPTURE(rows, width);
      const at::Tensor x = at::randn({rows, width}), weight = at::randn({width});
      const at::Tensor expected = moe::kernels::rms_norm(x, weight, 1e-5).to(at::kBFloat16);
      CHECK(at::equal(moe::kernels::rms_norm_to_bf16(x, weight, 1e-5), expected));
      const at::Tensor trained = x.clone().requires_grad_(true);
      CHECK(at::equal(moe::kernels::rms_norm_to_bf16(trained, weight, 1e-5), expected));
    }
  }
}
