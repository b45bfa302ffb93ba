#include "kernels/grouped_swiglu.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/support/catch.h"

using torch::Tensor;

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

void check_against_reference(int64_t rows,
                             int64_t width,
                             int64_t inner,
                             const std::vector<int64_t>& rows_per_expert) {
  const Inputs in = random_inputs(rows, width, inner, static_cast<int64_t>(rows_per_expert.size()));
  const Tensor upstream = at::randn({rows, width}, at::kDouble);
  const Tensor fast = moe::kernels::grouped_swiglu(in.rows, in.gate_up, in.down, rows_per_expert);
  const Tensor slow = row_by_row(in, rows_per_expert);
  CHECK(at::allclose(fast, slow, 1e-10, 1e-10));  // f64: a few hundred terms of 2^-53
  const auto gradients = [&](const Tensor& out) {
    return torch::autograd::grad({(out * upstream).sum()},
                                 {in.rows, in.gate_up, in.down},
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
}

TEST_CASE("grouped_swiglu takes no rows at all", "[kernels]") {
  const Inputs in = random_inputs(0, 4, 3, 2);
  const Tensor out = moe::kernels::grouped_swiglu(in.rows, in.gate_up, in.down, {0, 0});
  CHECK(out.sizes() == at::IntArrayRef({0, 4}));
  const auto gradients = torch::autograd::grad({out.sum()}, {in.gate_up, in.down});
  CHECK(gradients[0].abs().sum().item<double>() == 0);
  CHECK(gradients[1].abs().sum().item<double>() == 0);
}

TEST_CASE("grouped_swiglu accepts an expanded gradient", "[kernels]") {
  at::manual_seed(4);
  const Inputs in = random_inputs(5, 4, 3, 2);
  const Tensor out = moe::kernels::grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3});
  const auto expanded = torch::autograd::grad({out.sum()}, {in.rows}, {}, true);
  const auto spelt_out = torch::autograd::grad({(out * at::ones_like(out)).sum()}, {in.rows});
  CHECK(at::equal(expanded[0], spelt_out[0]));
}

TEST_CASE("grouped_swiglu refuses shapes that do not fit", "[kernels]") {
  const Inputs in = random_inputs(4, 4, 3, 2);
  CHECK_THROWS(moe::kernels::grouped_swiglu(in.rows, in.gate_up, in.down, {2, 3}));
  CHECK_THROWS(moe::kernels::grouped_swiglu(in.rows, in.gate_up, in.down, {2, 1, 1}));
  CHECK_THROWS(moe::kernels::grouped_swiglu(in.rows, in.down, in.gate_up, {2, 2}));
}
