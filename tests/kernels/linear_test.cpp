#include "kernels/ops/linear.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <vector>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/skinny_gemm.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;
using moe::kernels::linear;  // not at::linear
using moe::kernels::linear_in_f32;
using moe::kernels::linear_to_f32;

namespace {

// x rounded to bf16, in f64: what a bf16 operand is worth.
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); }

// A product of n terms of order 1 summed in f32 is off by at most n 2^-24 of the sum of their
// sizes.
constexpr double kF32Sum = 1e-5;
// One rounding to bf16, which has 8 significant bits: 2^-8 relative; beside the f32 sum it rounds.
constexpr double kBf16Step = 1.0 / 256 + kF32Sum;
// Sums of 96 products that stay below 8, in two orders.
constexpr double kOtherOrder = 96 * 8 * 0x1p-24;

double most_apart(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

}  // namespace

TEST_CASE("linear has the gradients of a product in x, weight and bias", "[kernels]") {
  at::manual_seed(3);
  const auto wide = at::TensorOptions(at::kDouble);
  const Tensor upstream = at::randn({5, 7}, wide);
  const Tensor x = at::randn({5, 3}, wide), weight = at::randn({7, 3}, wide);
  const Tensor bias = at::randn({7}, wide);
  CHECK(at::allclose(linear(x, weight, bias), x.mm(weight.t()) + bias, 1e-12, 1e-12));
  const auto check = [](const std::function<Tensor(const Tensor&)>& f, const Tensor& at) {
    CHECK(moe::test::distance(moe::test::autograd(f, at), moe::test::finite_difference(f, at)) <
          moe::test::kGradTolerance);
  };
  check([&](const Tensor& in) { return (linear(in, weight, bias) * upstream).sum(); }, x);
  check([&](const Tensor& in) { return (linear(x, in, bias) * upstream).sum(); }, weight);
  check([&](const Tensor& in) { return (linear(x, weight, in) * upstream).sum(); }, bias);
  check([&](const Tensor& in) { return (linear_to_f32(x, in) * upstream).sum(); }, weight);
  check([&](const Tensor& in) { return (linear_in_f32(in, weight) * upstream).sum(); }, x);
}

TEST_CASE("a weight in blocks of rows gives the bits of one tensor, whatever its dtype",
          "[kernels]") {
  at::manual_seed(5);
  const at::NoGradGuard no_gradients;
  for (const int64_t rows : {0, 1, 5, 6, 31, 70}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      // One too narrow for our own product, were it not for the rows beside it.
      for (const std::vector<int64_t>& outer : {std::vector<int64_t>{40, 8, 8}, {64}, {3, 172}}) {
        const int64_t sum = std::accumulate(outer.begin(), outer.end(), int64_t{0});
        CAPTURE(rows, dtype, outer);
        // Few rows of f32 in one tensor are LibTorch's, in an order of its own.
        const bool is_equal = rows >= moe::kernels::kTileRows || dtype != at::kFloat;
        const Tensor x = at::randn({rows, 96});
        const Tensor weight = (at::randn({sum, 96}) / 8).to(dtype), bias = at::randn({sum});
        moe::kernels::RowBlocks blocks;
        for (const Tensor& block : weight.split_with_sizes(outer, 0)) {
          blocks.push_back(block.clone());
        }
        const moe::kernels::Weight apart({blocks});
        CHECK(apart.outer() == sum);
        for (const Tensor& with : {Tensor(), bias}) {
          const Tensor whole = linear(x, weight, with), found = linear(x, apart, with);
          CHECK(most_apart(found, whole) <= (is_equal ? 0 : kOtherOrder));
        }
        Tensor fused = at::empty({rows, sum});
        moe::kernels::weight_matmul_out(fused, x, {weight}, at::kFloat);
        CHECK(most_apart(fused, moe::kernels::linear(x, weight)) <= (is_equal ? 0 : kOtherOrder));
      }
    }
  }
  const moe::kernels::Weight mixed({{at::randn({9, 16}), at::randn({7, 16}).to(at::kBFloat16)}});
  const Tensor x = at::randn({2, 16});
  CHECK(at::equal(moe::kernels::linear(x, mixed).narrow(1, 9, 7),
                  moe::kernels::linear(x, mixed.matrix(0)[1])));
  const at::AutoGradMode on(true);
  CHECK_THROWS(moe::kernels::linear(at::randn({2, 16}).requires_grad_(true), mixed));
  CHECK_THROWS(moe::kernels::linear(at::randn({2, 15}), mixed));
}

TEST_CASE("linear of bf16 rounds its operands and its result, never the weight's gradient",
          "[kernels]") {
  at::manual_seed(4);
  for (const int64_t rows : {0, 1, 31, 33}) {
    const Tensor x = at::randn({rows, 19}).to(at::kBFloat16).requires_grad_(true);
    const Tensor weight = at::randn({23, 19}).requires_grad_(true);  // f32: the master copy
    const Tensor bias = at::randn({23}).requires_grad_(true);
    const Tensor y = linear(x, weight, bias);
    CHECK(y.scalar_type() == at::kBFloat16);
    const Tensor exact = rounded(x).mm(rounded(weight).t()) + bias.to(at::kDouble);
    CHECK(at::allclose(y.to(at::kDouble), exact, kBf16Step, kF32Sum));
    CHECK(at::allclose(linear_to_f32(x, weight).to(at::kDouble), rounded(x).mm(rounded(weight).t()),
                       kF32Sum, kF32Sum));
    CHECK(at::allclose(linear_in_f32(x, weight).to(at::kDouble),
                       rounded(x).mm(weight.to(at::kDouble).t()), kF32Sum, kF32Sum));

    const Tensor upstream = at::randn({rows, 23}).to(at::kBFloat16);
    const auto gradients = torch::autograd::grad({y}, {x, weight, bias}, {upstream});
    CHECK(gradients[0].scalar_type() == at::kBFloat16);
    CHECK(gradients[1].scalar_type() == at::kFloat);
    CHECK(gradients[2].scalar_type() == at::kFloat);
    CHECK(at::allclose(gradients[0].to(at::kDouble), rounded(upstream).mm(rounded(weight)),
                       kBf16Step, kF32Sum));
    CHECK(at::allclose(gradients[1].to(at::kDouble), rounded(upstream).t().mm(rounded(x)), kF32Sum,
                       kF32Sum));
    CHECK(at::allclose(gradients[2].to(at::kDouble), rounded(upstream).sum(0), kF32Sum, kF32Sum));
  }
}

TEST_CASE("a weight that lies in bf16 is worth the numbers it stands for", "[kernels]") {
  at::manual_seed(5);
  const Tensor weight = at::randn({40, 24}).to(at::kBFloat16), wide = weight.to(at::kFloat);
  const Tensor bias = at::randn({40});
  for (const int64_t rows : {0, 1, 5, 6, 33, 49}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(rows, type);
      const Tensor x = at::randn({rows, 24}).to(type).requires_grad_(true);
      const auto check = [&](const Tensor& actual, const Tensor& expected) {
        CHECK(actual.scalar_type() == expected.scalar_type());
        // Few rows with an f32 tensor are LibTorch's, and some rows of bf16 with a bf16 one are
        // multiplied widened: a sum in another order may be rounded the other way.
        const bool is_exact = rows > moe::kernels::kMaxSkinnyRows ||
                              (type == at::kFloat && rows >= moe::kernels::kTileRows);
        const double step = type == at::kBFloat16 ? kBf16Step : kF32Sum;
        CHECK((is_exact ? at::equal(actual, expected)
                        : at::allclose(actual, expected, step, kF32Sum)));
      };
      for (const Tensor& added : {Tensor(), bias}) {
        const Tensor y = linear(x, weight, added), truth = linear(x, wide, added);
        check(y, truth);
        const Tensor upstream = at::randn({rows, 40}).to(type);
        check(torch::autograd::grad({y}, {x}, {upstream})[0],
              torch::autograd::grad({truth}, {x}, {upstream})[0]);
      }
      check(linear_to_f32(x, weight), linear_to_f32(x, wide));
    }
  }
}

TEST_CASE("add_linear adds the product, not rounded, and refuses shapes that do not fit",
          "[kernels]") {
  at::manual_seed(6);
  const at::NoGradGuard no_gradients;
  for (const int64_t rows : {0, 1, 31, 48, 49, 130}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const int64_t width : {1, 33, 64}) {
          CAPTURE(rows, dtype, type, width);
          const Tensor x = at::randn({rows, 40}).to(type);
          const Tensor weight = at::randn({width, 40}).to(dtype), before = at::randn({rows, width});
          Tensor sum = before.clone();
          moe::kernels::add_linear(sum, x, weight);
          const Tensor by = type == at::kBFloat16 ? weight.to(type) : weight;
          const Tensor exact =
              before.to(at::kDouble) + x.to(at::kDouble).mm(by.to(at::kDouble).t());
          CHECK(at::allclose(sum.to(at::kDouble), exact, kF32Sum, kF32Sum));
        }
      }
    }
  }
  CHECK_THROWS(moe::kernels::linear(at::zeros({2, 3}), at::zeros({4, 5})));
  CHECK_THROWS(moe::kernels::linear(at::zeros({2, 3}), at::zeros({4, 3}), at::zeros({5})));
  Tensor sum = at::zeros({2, 3});
  CHECK_THROWS(moe::kernels::add_linear(sum, at::zeros({2, 4}), at::zeros({4, 4})));
  CHECK_THROWS(moe::kernels::add_linear(sum, at::zeros({3, 4}), at::zeros({3, 4})));
}
