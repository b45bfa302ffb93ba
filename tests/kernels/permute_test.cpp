// permute and unpermute on the CPU against LibTorch's operations.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/permutation.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/matchers.h"
#include "tests/support/threads.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

struct Case {
  int64_t rows, width, tokens;
};

const std::vector<Case> kCases = {{0, 4, 3}, {1, 1, 1}, {31, 7, 33}, {33, 65, 1}, {64, 32, 20}};

// A permutation, some of whose rows have no token, and the same with an added last token for those.
struct Mapping {
  Permutation permutation;
  Tensor token, target;

  Mapping(Tensor tokens_of_rows, const Permutation& made)
      : permutation(made),
        token(std::move(tokens_of_rows)),
        target(at::where(token < 0, made.tokens, token)) {}

  Tensor gather(const Tensor& x) const {
    return at::cat({x, at::zeros({1, x.size(1)}, x.options())}).index_select(0, target);
  }
  Tensor sum(const Tensor& rows) const {
    return at::zeros({permutation.tokens + 1, rows.size(1)}, rows.options())
        .index_add(0, target, rows)
        .narrow(0, 0, permutation.tokens);
  }
};

// Rows of random tokens, each row another choice of its token; and rows at an index, each token
// once at most.
std::vector<Mapping> mappings(const Case& one) {
  const auto& [rows, width, tokens] = one;
  const Tensor any = at::randint(-1, tokens, {rows}, at::kLong);
  std::vector<Mapping> all = {
      {any, make_permutation(any, at::arange(rows, at::kLong), tokens, rows + 2)}};
  if (rows <= tokens) {
    const Tensor once = at::randperm(tokens, at::kLong).narrow(0, 0, rows);
    all.emplace_back(once, make_permutation(once, tokens));
  }
  return all;
}

}  // namespace

TEST_CASE("unpermute adds rows to their tokens, weighted or not, with gradients", "[kernels]") {
  at::manual_seed(1);
  for (const Case& one : kCases) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const Mapping& mapping : mappings(one)) {
        CAPTURE(one.rows, one.width, one.tokens, type);
        // Rows of bf16 are widened before they are weighted; their gradient is rounded once.
        const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
        const Tensor rows = at::randn({one.rows, one.width}).to(type).requires_grad_(true);
        const Tensor weight = at::rand({one.rows}).to(sums).requires_grad_(true);
        const Tensor upstream = at::randn({one.tokens, one.width}).to(sums);
        const auto leaf = [](const Tensor& x) {
          return x.detach().to(at::kDouble).requires_grad_(true);
        };
        const Tensor wide_rows = leaf(rows), wide_weight = leaf(weight);
        const Tensor slow = mapping.sum(wide_rows * wide_weight.unsqueeze(1));
        const Tensor fast = unpermute(rows, mapping.permutation, weight);
        CHECK(fast.scalar_type() == sums);
        // At most 65 terms of 2^-24; a result in bf16 is rounded once.
        const double most = type == at::kDouble ? 1e-12 : 1e-5;
        const double rounding = type == at::kBFloat16 ? 1.0 / (1 << 8) : most;
        CHECK(distance(fast, slow) < most);
        const auto actual = torch::autograd::grad({fast}, {rows, weight}, {upstream});
        const auto expected =
            torch::autograd::grad({slow}, {wide_rows, wide_weight}, {upstream.to(at::kDouble)});
        CHECK(distance(actual[0], expected[0]) < rounding);
        CHECK(distance(actual[1], expected[1]) < most);

        const Tensor plain = unpermute(rows, mapping.permutation);
        CHECK(distance(plain, mapping.sum(wide_rows)) < rounding);
        const Tensor gradient = torch::autograd::grad({plain}, {rows}, {upstream.to(type)})[0];
        CHECK(at::equal(gradient, mapping.gather(upstream.to(type))));
      }
    }
  }
}

TEST_CASE("permute copies tokens to rows and adds their gradients", "[kernels]") {
  at::manual_seed(2);
  for (const Case& one : kCases) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const Mapping& mapping : mappings(one)) {
        CAPTURE(one.rows, one.width, one.tokens, type);
        const Tensor x = at::randn({one.tokens, one.width}).to(type).requires_grad_(true);
        const Tensor rows = permute(x, mapping.permutation);
        CHECK(at::equal(rows, mapping.gather(x)));
        const Tensor upstream = at::randn({one.rows, one.width}).to(type);
        // Sums of bf16 are made in f32 and rounded once.
        const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
        const Tensor expected = mapping.sum(upstream.to(sums)).to(type);
        const auto actual = torch::autograd::grad({rows}, {x}, {upstream});
        CHECK(distance(actual[0], expected) < (type == at::kDouble ? 1e-13 : 1e-5));
      }
    }
  }
}

TEST_CASE("unpermute gives the same bits for any number of threads", "[kernels]") {
  at::manual_seed(3);
  const auto permutation = mappings({900, 200, 400})[0].permutation;
  const Tensor weight = at::rand({900});
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor rows = at::randn({900, 200}).to(type);
    by_any_threads([&] {
      return std::vector<Tensor>{unpermute(rows, permutation, weight), unpermute(rows, permutation),
                                 permute(rows.narrow(0, 0, 400), permutation)};
    });
  }
}

TEST_CASE("permute and unpermute refuse what does not fit", "[kernels]") {
  const auto permutation = make_permutation(at::tensor({0, 2}, at::kLong), 3);
  CHECK_THROWS(permute(at::zeros({4, 2}), permutation));
  CHECK_THROWS(permute(at::zeros({3, 2}, at::kHalf), permutation));
  CHECK_THROWS(unpermute(at::zeros({3, 2}), permutation));
  CHECK_THROWS(unpermute(at::zeros({2, 2}), permutation, at::ones({2}, at::kDouble)));
  const Tensor list = at::zeros({2}, at::kLong);
  CHECK_THROWS_WITH(segment_rows(list, list, list, list, 3, 1), contains_text("'CPU' backend"));
}
