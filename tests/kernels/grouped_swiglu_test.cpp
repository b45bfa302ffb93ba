#include "kernels/ops/grouped_swiglu.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/catch.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

struct Inputs {
  Tensor rows, gate_up, down;
};

Inputs random_inputs(int64_t rows, int64_t width, int64_t inner, int64_t experts) {
  const auto options = at::TensorOptions(at::kDouble);
  return {at::randn({rows, width}, options).requires_grad_(true),
          at::randn({experts, 2 * inner, width}, options).requires_grad_(true),
          at::randn({experts, width, inner}, options).requires_grad_(true)};
}

// The slow obvious form: each row by itself through its own expert, gradients by autograd.
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

TEST_CASE("grouped_swiglu equals one expert a row, values and gradients", "[kernels]") {
  at::manual_seed(1);
  check_against_reference(6, 5, 7, {2, 3, 1});
  check_against_reference(33, 8, 3, {33});
  check_against_reference(31, 7, 9, {0, 31, 0});  // one expert with everything, others with nothing
  check_against_reference(9, 4, 4, {0, 0, 4, 2});  // three rows past the sum
  check_against_reference(1, 1, 1, {1});
  check_against_reference(4, 3, 2, {0, 0});  // rows, but none in use
  check_against_reference(0, 4, 3, {0, 0});
}

TEST_CASE("grouped_swiglu accepts an expanded gradient", "[kernels]") {
  const Inputs in = random_inputs(5, 4, 3, 2);
  const Tensor out = grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3});
  const auto expanded = torch::autograd::grad({out.sum()}, {in.rows}, {}, true);
  const auto dense = torch::autograd::grad({out}, {in.rows}, {at::ones_like(out)});
  CHECK(at::equal(expanded[0], dense[0]));
}

TEST_CASE("grouped_swiglu refuses shapes that do not fit", "[kernels]") {
  const Inputs in = random_inputs(4, 4, 3, 2);
  CHECK_THROWS(grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3}));
  CHECK_THROWS(grouped_swiglu(in.rows, in.gate_up, in.down, {2, 1, 1}));
  CHECK_THROWS(grouped_swiglu(in.rows, in.down, in.gate_up, {2, 2}));
}

TEST_CASE("experts whose matrices are several tensors give the bits of one tensor", "[kernels]") {
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

TEST_CASE("grouped_swiglu with its loads on the device equals that with loads on the host",
          "[kernels]") {
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
        // The same products, summed in another order at most; in bf16 a sum may then round to the
        // neighbour, and what is made of it follows.
        const double epsilon = type == at::kBFloat16 ? 1.0 / (1 << 6) : 1e-4;
        CHECK(at::allclose(actual[i], expected[i], epsilon, epsilon));
      }
    }
  }
}
