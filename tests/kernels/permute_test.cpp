// permute and unpermute on the CPU against LibTorch's operations, and the references against what
// they promise.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/permutation.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/matchers.h"
#include "tests/support/segments.h"
#include "tests/support/threads.h"

using at::Tensor;
using moe::kernels::permutation_of;
using moe::kernels::permute;
using moe::kernels::unpermute;

namespace {

struct Case {
  int64_t rows, width, tokens;
};

const std::vector<Case> kCases = {{0, 4, 3}, {1, 1, 1}, {31, 7, 33}, {33, 65, 1}, {64, 32, 20}};

Tensor weighted_sums(const Tensor& rows, const Tensor& weight, const Tensor& token,
                     int64_t tokens) {
  return at::zeros({tokens, rows.size(1)}, rows.options())
      .index_add(0, token, rows * weight.unsqueeze(1));
}

// Rows of random tokens, each row another choice of its token.
moe::kernels::Permutation by_tokens(const Tensor& token, int64_t tokens) {
  return permutation_of(token, at::arange(token.size(0), at::kLong), tokens, token.size(0) + 2);
}

}  // namespace

TEST_CASE("unpermute adds weighted rows to their tokens, with gradients", "[kernels]") {
  at::manual_seed(1);
  for (const auto& [count, width, tokens] : kCases) {
    CAPTURE(count, width, tokens);
    const Tensor token = at::randint(tokens, {count}, at::kLong);
    const auto permutation = by_tokens(token, tokens);
    const Tensor rows = at::randn({count, width}).requires_grad_(true);
    const Tensor weight = at::rand({count}).requires_grad_(true);
    const Tensor upstream = at::randn({tokens, width});
    const Tensor wide_rows = rows.detach().to(at::kDouble).requires_grad_(true);
    const Tensor wide_weight = weight.detach().to(at::kDouble).requires_grad_(true);
    const Tensor slow = weighted_sums(wide_rows, wide_weight, token, tokens);
    const Tensor fast = unpermute(rows, permutation, weight);
    CHECK(moe::test::distance(fast, slow) < 1e-5);  // at most 65 terms of 2^-24
    const auto actual = torch::autograd::grad({fast}, {rows, weight}, {upstream});
    const auto expected =
        torch::autograd::grad({slow}, {wide_rows, wide_weight}, {upstream.to(at::kDouble)});
    CHECK(moe::test::distance(actual[0], expected[0]) < 1e-5);
    CHECK(moe::test::distance(actual[1], expected[1]) < 1e-5);

    const Tensor wide = unpermute(wide_rows, permutation, wide_weight);
    CHECK(moe::test::distance(wide, slow) < 1e-13);
    const auto wide_gradients =
        torch::autograd::grad({wide}, {wide_rows, wide_weight}, {upstream.to(at::kDouble)});
    CHECK(moe::test::distance(wide_gradients[0], expected[0]) < 1e-13);
    CHECK(moe::test::distance(wide_gradients[1], expected[1]) < 1e-12);

    // bf16 rows are widened before they are weighted; their gradient is rounded once.
    const Tensor narrow = rows.detach().to(at::kBFloat16).requires_grad_(true);
    const Tensor widened = narrow.detach().to(at::kFloat).requires_grad_(true);
    const Tensor of_narrow = unpermute(narrow, permutation, weight);
    const Tensor of_widened = unpermute(widened, permutation, weight);
    CHECK(at::equal(of_narrow, of_widened));
    const auto narrow_gradients = torch::autograd::grad({of_narrow}, {narrow, weight}, {upstream});
    const auto widened_gradients =
        torch::autograd::grad({of_widened}, {widened, weight}, {upstream});
    CHECK(at::equal(narrow_gradients[0], widened_gradients[0].to(at::kBFloat16)));
    CHECK(at::equal(narrow_gradients[1], widened_gradients[1]));
  }
}

TEST_CASE("permuted rows give their gradients back to their tokens", "[kernels]") {
  at::manual_seed(2);
  for (const auto& [count, width, tokens] : kCases) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(count, width, tokens);
      const Tensor token = at::randint(tokens, {count}, at::kLong);
      const Tensor x = at::randn({tokens, width}).to(type).requires_grad_(true);
      const Tensor rows = permute(x, by_tokens(token, tokens));
      CHECK(at::equal(rows, x.index_select(0, token)));
      const Tensor upstream = at::randn({count, width}).to(type);
      // Sums of bf16 are made in f32 and rounded once.
      const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
      const Tensor expected =
          at::zeros({tokens, width}, sums).index_add(0, token, upstream.to(sums)).to(type);
      const auto actual = torch::autograd::grad({rows}, {x}, {upstream});
      CHECK(moe::test::distance(actual[0], expected) < (type == at::kDouble ? 1e-13 : 1e-5));
    }
  }
}

TEST_CASE("rows without a token are zeros, and tokens without rows too", "[kernels]") {
  const Tensor token = at::tensor({4, -1, 2}, at::kLong);
  const Tensor x = at::arange(10, at::kFloat).view({5, 2}).add(1).requires_grad_(true);
  const Tensor rows = permute(x, permutation_of(token, 5));
  CHECK(at::equal(rows[0], x[4]));
  CHECK(at::equal(rows[1], at::zeros({2})));
  const Tensor weight = at::full({3}, 2.0F).requires_grad_(true);
  const Tensor y = unpermute(rows, permutation_of(token, 5), weight);
  CHECK(at::equal(y[4], x[4] * 2));
  CHECK(at::equal(y[0], at::zeros({2})));
  const auto gradients = torch::autograd::grad({y.sum()}, {x, weight});
  CHECK(gradients[1][1].item<float>() == 0);
  CHECK(at::equal(gradients[0][0], at::zeros({2})));
  CHECK(at::equal(gradients[0][2], at::full({2}, 2.0F)));
}

TEST_CASE("unpermute undoes permute by an index, and each is the other's gradient", "[kernels]") {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor rows = at::arange(6, type).view({3, 2}).requires_grad_(true);
    const auto permutation = permutation_of(at::tensor({4, 0, 2}, at::kLong), 5);
    const Tensor out = unpermute(rows, permutation);
    CHECK(at::equal(out[1], at::zeros({2}, type)));
    CHECK(at::equal(out[4], rows[0]));
    CHECK(at::equal(permute(out, permutation), rows));
    const Tensor factor = at::arange(10, type).view({5, 2});
    const auto of_rows = torch::autograd::grad({(out * factor).sum()}, {rows});
    CHECK(at::equal(of_rows[0], factor.index_select(0, permutation.token)));
    const Tensor x = at::ones({5, 2}, type).requires_grad_(true);
    const auto of_x = torch::autograd::grad({(permute(x, permutation) * rows.detach()).sum()}, {x});
    CHECK(at::equal(of_x[0].index_select(0, permutation.token), rows));
    CHECK(at::equal(of_x[0][3], at::zeros({2}, type)));
  }
}

TEST_CASE("unpermute gives the same bits for any number of threads", "[kernels]") {
  at::manual_seed(3);
  const Tensor token = at::randint(400, {900}, at::kLong), weight = at::rand({900});
  const auto permutation = by_tokens(token, 400);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor rows = at::randn({900, 200}).to(type);
    moe::test::by_any_threads([&] {
      return std::vector<Tensor>{unpermute(rows, permutation, weight), unpermute(rows, permutation),
                                 permute(rows.narrow(0, 0, 400), permutation)};
    });
  }
}

TEST_CASE("permute and unpermute refuse what does not fit", "[kernels]") {
  const auto permutation = permutation_of(at::tensor({0, 2}, at::kLong), 3);
  CHECK_THROWS(permute(at::zeros({4, 2}), permutation));
  CHECK_THROWS(permute(at::zeros({3, 2}, at::kHalf), permutation));
  CHECK_THROWS(unpermute(at::zeros({3, 2}), permutation));
  CHECK_THROWS(unpermute(at::zeros({2, 2}), permutation, at::ones({2}, at::kDouble)));
  const Tensor list = at::zeros({2}, at::kLong);
  CHECK_THROWS_WITH(moe::kernels::segment_rows(list, list, list, list, 3, 1),
                    moe::test::contains_text("'CPU' backend"));
}

TEST_CASE("segments start at multiples of 8, hold the plan's rows and end in gaps", "[kernels]") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    const auto segments = moe::test::random_segments(tokens, 4, 2, 5);
    const auto& laid = segments.by_reference;
    int64_t start = 0, plan_row = 0;
    for (int64_t expert = 0; expert < 4; ++expert) {
      const int64_t rows = segments.plan.rows[expert].item<int64_t>();
      const int64_t end = laid.ends[expert].item<int64_t>();
      CHECK(end % 8 == 0);
      CHECK(end - start >= rows);
      CHECK(end - start < rows + 8);
      for (int64_t row = start; row < end; ++row) {
        if (row - start >= rows) {
          CHECK(laid.row_token[row].item<int64_t>() == -1);
          continue;
        }
        const int64_t token = segments.plan.token[plan_row].item<int64_t>();
        const int64_t choice = segments.plan.choice[plan_row].item<int64_t>();
        CHECK(laid.row_token[row].item<int64_t>() == token);
        CHECK(laid.row_of_token[token * 4 + choice].item<int64_t>() == row);
        CHECK(laid.row_of_plan[plan_row].item<int64_t>() == row);
        ++plan_row;
      }
      start = end;
    }
    CHECK((laid.row_of_token >= 0).sum().item<int64_t>() == plan_row);
    CHECK((laid.row_of_plan == segments.rows()).sum().item<int64_t>() ==
          segments.plan.token.size(0) - plan_row);
    CHECK(start <= laid.row_token.size(0));
  }
}

TEST_CASE("the reference of unpermute has the gradients of its finite differences", "[kernels]") {
  at::manual_seed(2);
  const auto segments = moe::test::random_segments(6, 3, 2, 2);
  const Tensor& token = segments.by_reference.row_token;
  const moe::kernels::PermuteShape shape{6, segments.rows(), 3, segments.columns};
  const Tensor rows = at::randn({shape.rows, 3}, at::kDouble);
  const Tensor weight = at::randn({shape.rows}, at::kDouble);
  const Tensor grad_y = at::randn({6, 3}, at::kDouble);
  const auto dtype = moe::kernels::PermuteDtype::kF64;
  const auto loss = [&](const Tensor& r, const Tensor& w) {
    const Tensor y = at::empty({6, 3}, at::kDouble);
    moe::test::unpermute_reference<double>({token.const_data_ptr<int64_t>(), nullptr, shape,
                                            r.const_data_ptr(), true, w.const_data_ptr(),
                                            y.data_ptr(), dtype});
    return (y * grad_y).sum();
  };
  const Tensor grad_rows = at::zeros_like(rows), grad_weight = at::empty_like(weight);
  moe::test::unpermute_backward_reference<double>({token.const_data_ptr<int64_t>(), nullptr, shape,
                                                   rows.const_data_ptr(), weight.const_data_ptr(),
                                                   grad_y.const_data_ptr(), grad_rows.data_ptr(),
                                                   grad_weight.data_ptr(), dtype});
  const auto of_rows = [&](const Tensor& r) { return loss(r, weight); };
  const auto of_weight = [&](const Tensor& w) { return loss(rows, w); };
  CHECK(moe::test::distance(grad_rows, moe::test::finite_difference(of_rows, rows)) <
        moe::test::kGradTolerance);
  CHECK(moe::test::distance(grad_weight, moe::test::finite_difference(of_weight, weight)) <
        moe::test::kGradTolerance);
}
