#include "kernels/ops/linear.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <vector>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/grouped_swiglu.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using namespace moe::kernels;
using namespace moe::test;
using at::Tensor;
using moe::kernels::linear;  // not at::linear
using moe::kernels::linear_in_f32;
using moe::kernels::linear_to_f32;

namespace {

// Returns x rounded to bf16, in f64: the value of a bf16 operand.
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); }

// A product of n terms of order 1 summed in f32 is off by at most n 2^-24 of the sum of their
// sizes.
constexpr double kF32Sum = 1e-5;
// One rounding to bf16, which has 8 significant bits: 2^-8 relative, plus the error of the f32 sum.
constexpr double kBf16Step = 1.0 / 256 + kF32Sum;
// Sums of 96 products that stay below 8, in two orders.
constexpr double kOtherOrder = 96 * 8 * 0x1p-24;

double max_difference(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

struct Inputs {
  Tensor rows, gate_up, down;
};

Inputs random_inputs(int64_t rows, int64_t width, int64_t inner, int64_t experts) {
  const auto options = at::TensorOptions(at::kDouble);
  return {at::randn({rows, width}, options).requires_grad_(true),
          at::randn({experts, 2 * inner, width}, options).requires_grad_(true),
          at::randn({experts, width, inner}, options).requires_grad_(true)};
}

// Reference: each row alone through its expert, gradients by autograd.
Tensor row_by_row(const Inputs& in, const std::vector<int64_t>& rows_per_expert) {
  std::vector<Tensor> out;
  int64_t row = 0;
  for (size_t expert = 0; expert < rows_per_expert.size(); ++expert) {
    const Tensor gate_up = in.gate_up[static_cast<int64_t>(expert)];
    const Tensor down = in.down[static_cast<int64_t>(expert)];
    const int64_t inner = down.size(1);
    for (int64_t count = 0; count < rows_per_expert[expert]; ++count, ++row) {
      const Tensor gate = gate_up.narrow(0, 0, inner).mv(in.rows[row]);
      const Tensor up = gate_up.narrow(0, inner, inner).mv(in.rows[row]);
      out.push_back(down.mv(gate * gate.sigmoid() * up));
    }
  }
  for (; row < in.rows.size(0); ++row) {
    out.push_back(at::zeros({in.rows.size(1)}, in.rows.options()));
  }
  return out.empty() ? at::zeros_like(in.rows) : at::stack(out);
}

void check_against_reference(int64_t rows, int64_t width, int64_t inner,
                             const std::vector<int64_t>& rows_per_expert) {
  const Inputs in = random_inputs(rows, width, inner, static_cast<int64_t>(rows_per_expert.size()));
  const Tensor upstream = at::randn({rows, width}, at::kDouble);
  const Tensor fast = grouped_swiglu(in.rows, in.gate_up, in.down, rows_per_expert);
  const Tensor slow = row_by_row(in, rows_per_expert);
  CHECK(at::allclose(fast, slow, 1e-10, 1e-10));  // f64: a few hundred terms of 2^-53
  const auto gradients = [&](const Tensor& out) {
    return torch::autograd::grad({(out * upstream).sum()}, {in.rows, in.gate_up, in.down},
                                 /*grad_outputs=*/{},
                                 /*retain_graph=*/false,
                                 /*create_graph=*/false,
                                 /*allow_unused=*/true);
  };
  const auto fast_gradients = gradients(fast);
  const auto slow_gradients = slow.requires_grad() ? gradients(slow) : std::vector<Tensor>(3);
  for (size_t index = 0; index < fast_gradients.size(); ++index) {
    const Tensor expected = slow_gradients[index].defined() ? slow_gradients[index]
                                                            : at::zeros_like(fast_gradients[index]);
    CHECK(at::allclose(fast_gradients[index], expected, 1e-10, 1e-10));
  }
}

}  // namespace

TEST_CASE("linear has the gradients of a product in x, weight and bias") {
  at::manual_seed(3);
  const auto wide = at::TensorOptions(at::kDouble);
  const Tensor upstream = at::randn({5, 7}, wide);
  const Tensor x = at::randn({5, 3}, wide), weight = at::randn({7, 3}, wide);
  const Tensor bias = at::randn({7}, wide);
  CHECK(at::allclose(linear(x, weight, bias), x.mm(weight.t()) + bias, 1e-12, 1e-12));
  const auto check = [](const std::function<Tensor(const Tensor&)>& f, const Tensor& at) {
    CHECK(distance(moe::test::autograd(f, at), finite_difference(f, at)) < kGradTolerance);
  };
  check([&](const Tensor& in) { return (linear(in, weight, bias) * upstream).sum(); }, x);
  check([&](const Tensor& in) { return (linear(x, in, bias) * upstream).sum(); }, weight);
  check([&](const Tensor& in) { return (linear(x, weight, in) * upstream).sum(); }, bias);
  check([&](const Tensor& in) { return (linear_to_f32(x, in) * upstream).sum(); }, weight);
  check([&](const Tensor& in) { return (linear_in_f32(in, weight) * upstream).sum(); }, x);
}

TEST_CASE("a weight in blocks of rows gives the bits of one tensor, for every dtype") {
  at::manual_seed(5);
  const at::NoGradGuard no_gradients;
  for (const int64_t rows : {0, 1, 5, 6, 31, 70}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      // A block of 3 rows alone would be too narrow for our own product.
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
          CHECK(max_difference(found, whole) <= (is_equal ? 0 : kOtherOrder));
        }
        Tensor fused = at::empty({rows, sum});
        moe::kernels::weight_matmul_out(fused, x, {weight}, at::kFloat);
        CHECK(max_difference(fused, moe::kernels::linear(x, weight)) <=
              (is_equal ? 0 : kOtherOrder));
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

TEST_CASE("linear of bf16 rounds its operands and its result, never the weight's gradient") {
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

TEST_CASE("a weight stored in bf16 gives the products of its values") {
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

TEST_CASE("add_linear adds the product, not rounded, and refuses shapes that do not fit") {
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

TEST_CASE("grouped_swiglu equals one expert a row, values and gradients") {
  at::manual_seed(1);
  check_against_reference(6, 5, 7, {2, 3, 1});
  check_against_reference(33, 8, 3, {33});
  check_against_reference(31, 7, 9, {0, 31, 0});  // one expert with everything, others with nothing
  check_against_reference(9, 4, 4, {0, 0, 4, 2});  // three rows past the sum
  check_against_reference(1, 1, 1, {1});
  check_against_reference(4, 3, 2, {0, 0});  // rows, but none in use
  check_against_reference(0, 4, 3, {0, 0});
}

TEST_CASE("grouped_swiglu accepts an expanded gradient") {
  const Inputs in = random_inputs(5, 4, 3, 2);
  const Tensor out = grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3});
  const auto expanded = torch::autograd::grad({out.sum()}, {in.rows}, {}, true);
  const auto dense = torch::autograd::grad({out}, {in.rows}, {at::ones_like(out)});
  CHECK(at::equal(expanded[0], dense[0]));
}

TEST_CASE("grouped_swiglu refuses shapes that do not fit") {
  const Inputs in = random_inputs(4, 4, 3, 2);
  CHECK_THROWS(grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3}));
  CHECK_THROWS(grouped_swiglu(in.rows, in.gate_up, in.down, {2, 1, 1}));
  CHECK_THROWS(grouped_swiglu(in.rows, in.down, in.gate_up, {2, 2}));
}

TEST_CASE("experts whose matrices are several tensors give the bits of one tensor") {
  at::manual_seed(8);
  const at::NoGradGuard no_gradients;
  // One block of columns, several and a rest; one block of depth and two.
  for (const auto& [inner, width] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {20, 24}, {33, 31}, {256, 70}, {300, 300}, {520, 8}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor gate_up = (at::randn({3, 2 * inner, width}) / 5).to(dtype);
      const Tensor down = (at::randn({3, width, inner}) / 5).to(dtype);
      for (const int64_t cut : {inner, inner + inner / 2}) {  // a block may hold some of both
        std::vector<RowBlocks> gates_and_ups, downs;
        for (int64_t expert = 0; expert < 3; ++expert) {
          gates_and_ups.push_back({gate_up[expert].narrow(0, 0, cut).clone(),
                                   gate_up[expert].narrow(0, cut, 2 * inner - cut).clone()});
          downs.push_back({down[expert].clone()});
        }
        const Weight gate_up_apart(gates_and_ups), down_apart(downs);
        const auto check = [&](at::ScalarType type, const std::vector<int64_t>& loads) {
          CAPTURE(inner, width, dtype, type, cut, loads);
          const Tensor rows = at::randn({203, width}).to(type);
          CHECK(at::equal(grouped_swiglu(rows, gate_up_apart, down_apart, loads),
                          grouped_swiglu(rows, gate_up, down, loads)));
        };
        check(at::kFloat, {49, 0, 150});
        if (dtype != at::kHalf) {  // there are no products of bf16 and f16
          check(at::kBFloat16, {49, 0, 150});
        }
        if (inner == 20) {
          check(at::kFloat, {7, 0, 9});
          check(at::kFloat, {0, 0, 0});
          check(at::kFloat, {6, 6, 6});
        }
        const auto refuses = [&](const auto& first, const auto& second,
                                 const std::vector<int64_t>& loads) {
          CHECK_THROWS(grouped_swiglu(at::randn({18, width}), first, second, loads));
        };
        refuses(gate_up_apart, down_apart, {9, 9, 9});
        refuses(gate_up_apart, down_apart, {9, 9});
        refuses(down_apart, gate_up_apart, {6, 6, 6});
      }
    }
  }
}

TEST_CASE("grouped_swiglu with its loads on the device equals that with loads on the host") {
  at::manual_seed(6);
  // Widths that at::_grouped_mm takes, and some that it does not; an expert without rows.
  for (const auto& [width, inner] : {std::pair<int64_t, int64_t>{16, 24}, {8, 8}, {5, 3}}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      CAPTURE(width, inner, at::toString(type));
      const std::vector<int64_t> loads{8, 0, 24};
      const Tensor ends = at::tensor({8, 8, 32}, at::kInt);
      const Tensor rows = at::randn({40, width}).to(type).requires_grad_(true);
      const auto weight_type = type == at::kDouble ? type : at::kFloat;
      const Tensor gate_up = at::randn({3, 2 * inner, width}, weight_type).requires_grad_(true);
      const Tensor down = at::randn({3, width, inner}, weight_type).requires_grad_(true);
      const Tensor upstream = at::randn({32, width}).to(type);
      const auto results = [&](const Tensor& out) {
        const Tensor used = out.narrow(0, 0, 32);
        auto all = torch::autograd::grad({used}, {rows, gate_up, down}, {upstream});
        all[0] = all[0].narrow(0, 0, 32);
        all.push_back(used.detach());
        return all;
      };
      const auto expected = results(grouped_swiglu(rows, gate_up, down, loads));
      const auto actual = results(grouped_swiglu(rows, gate_up, down, ends));
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(actual[i].scalar_type() == expected[i].scalar_type());
        // Equal products, possibly summed in another order; in bf16 a sum may then round to the
        // neighbour, and what is made of it follows.
        const double epsilon = type == at::kBFloat16 ? 1.0 / (1 << 6) : 1e-4;
        CHECK(at::allclose(actual[i], expected[i], epsilon, epsilon));
      }
    }
  }
}
