#include "kernels/ops/token_rows.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

using at::Tensor;

namespace {

struct Case {
  int64_t rows, width, tokens;
};

const std::vector<Case> kCases = {{0, 4, 3}, {1, 1, 1}, {31, 7, 33}, {33, 65, 1}, {64, 32, 20}};

Tensor plain(const Tensor& rows, const Tensor& gate, const Tensor& token, int64_t tokens) {
  return at::zeros({tokens, rows.size(1)}, rows.options())
      .index_add(0, token, rows * gate.unsqueeze(1));
}

}  // namespace

TEST_CASE("rows combine to their tokens, weighted, with gradients", "[kernels]") {
  at::manual_seed(1);
  for (const auto& [count, width, tokens] : kCases) {
    CAPTURE(count, width, tokens);
    const Tensor token = at::randint(tokens, {count}, at::kLong);
    const Tensor rows = at::randn({count, width}).requires_grad_(true);
    const Tensor gate = at::rand({count}).requires_grad_(true);
    const Tensor upstream = at::randn({tokens, width});
    const Tensor wide_rows = rows.detach().to(at::kDouble).requires_grad_(true);
    const Tensor wide_gate = gate.detach().to(at::kDouble).requires_grad_(true);
    const Tensor slow = plain(wide_rows, wide_gate, token, tokens);
    const Tensor fast = moe::kernels::combine_rows(rows, gate, token, tokens);
    CHECK(moe::test::distance(fast, slow) < 1e-5);  // at most 65 terms of 2^-24
    const auto actual = torch::autograd::grad({fast}, {rows, gate}, {upstream});
    const auto expected =
        torch::autograd::grad({slow}, {wide_rows, wide_gate}, {upstream.to(at::kDouble)});
    CHECK(moe::test::distance(actual[0], expected[0]) < 1e-5);
    CHECK(moe::test::distance(actual[1], expected[1]) < 1e-5);
    // f64 and bf16 are LibTorch's
    CHECK(moe::test::distance(moe::kernels::combine_rows(wide_rows, wide_gate, token, tokens),
                              slow) < 1e-13);
    const Tensor halves = rows.detach().to(at::kBFloat16);
    CHECK(moe::test::distance(moe::kernels::combine_rows(halves, gate, token, tokens),
                              plain(halves.to(at::kFloat), gate, token, tokens)) < 1e-5);
  }
}

TEST_CASE("gathered rows give their gradients back to their tokens", "[kernels]") {
  at::manual_seed(2);
  for (const auto& [count, width, tokens] : kCases) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      CAPTURE(count, width, tokens);
      const Tensor token = at::randint(tokens, {count}, at::kLong);
      const Tensor x = at::randn({tokens, width}, type).requires_grad_(true);
      const Tensor rows = moe::kernels::gather_rows(x, token);
      CHECK(at::equal(rows, x.index_select(0, token)));
      const Tensor upstream = at::randn_like(rows);
      const auto expected = torch::autograd::grad({x.index_select(0, token)}, {x}, {upstream});
      const auto actual = torch::autograd::grad({rows}, {x}, {upstream});
      CHECK(moe::test::distance(actual[0], expected[0]) < 1e-5);
    }
  }
}

TEST_CASE("combining gives the same bits for one thread and two", "[kernels]") {
  at::manual_seed(3);
  const Tensor token = at::randint(50, {300}, at::kLong), rows = at::randn({300, 200});
  const Tensor gate = at::rand({300});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensor one = moe::kernels::combine_rows(rows, gate, token, 50);
  at::set_num_threads(2);
  const Tensor two = moe::kernels::combine_rows(rows, gate, token, 50);
  at::set_num_threads(threads);
  CHECK(at::equal(one, two));
}
