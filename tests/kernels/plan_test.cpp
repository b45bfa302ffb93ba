// The CPU kernels of a routing plan: choices of tokens, a top-k plan, counts and weights of a plan.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "kernels/ops/permutation.h"
#include "kernels/ops/plan_gate_weights.h"
#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"
#include "tests/kernels/reference/plan_cases.h"
#include "tests/kernels/reference/weight_cases.h"
#include "tests/support/gradcheck.h"
#include "tests/support/matchers.h"
#include "tests/support/threads.h"

using namespace moe::kernels;
using namespace moe::test;
using at::Tensor;

namespace {

void check_order(const Tensor& logits) {
  CAPTURE(logits.sizes());
  const Tensor order = by_any_threads([&] {
    const Tensor to = at::full(logits.sizes(), -1, at::kLong);
    expert_order_cpu(
        {logits.const_data_ptr<float>(), to.data_ptr<int64_t>(), logits.size(0), logits.size(1)});
    return std::vector<Tensor>{to};
  })[0];
  CHECK(at::equal(order, std::get<1>(at::sort(logits, /*stable=*/true, 1, /*descending=*/true))));
}

void check_choices(const Tensor& logits, const Tensor& source_rank, int64_t ranks,
                   int64_t choices) {
  CAPTURE(logits.sizes(), ranks, choices);
  const auto expected = choices_of(logits, source_rank, ranks, choices);
  const auto actual = by_any_threads([&] {
    const Tensor choice = at::full({logits.size(0), choices}, -2, at::kInt);
    const Tensor local_choice = at::full({logits.size(0)}, -2, at::kInt);
    router_choices_cpu({logits.const_data_ptr<float>(),
                        source_rank.const_data_ptr<int32_t>(),
                        {logits.size(0), logits.size(1), ranks, choices},
                        nullptr,
                        choice.data_ptr<int32_t>(),
                        local_choice.data_ptr<int32_t>(),
                        nullptr});
    return std::vector<Tensor>{choice, local_choice};
  });
  CHECK(at::equal(actual[0], expected.choice));
  CHECK(at::equal(actual[1], expected.local_choice));
}

std::vector<Tensor> run_plan(const TopKPlanShape& shape, const ChoiceTensors& from,
                             const Tensor& source_rank, const Tensor& capacity) {
  auto in = plan_input(from, source_rank, capacity);
  in.requested = nullptr;  // is not read
  return by_any_threads([&] {
    const auto to = plan_room(shape, source_rank);
    top_k_plan_cpu({shape, in, to.memory(), nullptr});
    return to.all();
  });
}

const PlanKernels kCpu{poisoned_host,
                       [](const Tensor& tensor) { return tensor; },
                       plan_counts_cpu,
                       plan_gate_weights_cpu,
                       plan_gate_weights_backward_cpu,
                       [](auto run) { return by_any_threads(run); }};

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

TEST_CASE("experts are ordered as a stable sort orders them") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33, 700}) {
    for (const int64_t experts : {1, 3, 8, 32, 33, 257}) {
      check_order(at::randn({tokens, experts}));
      check_order(at::randn({tokens, experts}).round());  // ties, and zeros of both signs
    }
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  check_order(
      at::tensor({0.0F, -0.0F, kNan, 1.0F, -kInfinity, kInfinity, -kNan, 1.0F, -1.0F}, at::kFloat)
          .view({3, 3}));
}

TEST_CASE("a token's choices and the best expert of its own rank are those of the reference") {
  at::manual_seed(2);
  for (const int64_t tokens : {0, 1, 31, 33, 700}) {
    for (const int64_t ranks : {1, 2, 4}) {
      const Tensor source_rank = home_ranks(tokens, ranks);
      for (const int64_t choices : {1, 2, 8}) {
        check_choices(at::randn({tokens, 8}), source_rank, ranks, choices);
        check_choices(at::randn({tokens, 8}).round(), source_rank, ranks, choices);
      }
    }
  }
}

TEST_CASE("a plan has the rows that the reference selects") {
  check_batches(run_plan, {0, 1, 31, 33, 700}, {0, 3, 90, 0x7fffffff});
}

TEST_CASE("a plan keeps the order of ties, and serves one expert that has all") {
  check_ties(run_plan, 40);
  check_ties(run_plan, 1500);
}

TEST_CASE("threads share the tokens of a plan, whose blocks are longer for many lists") {
  at::manual_seed(7);
  check_plan(run_plan, at::randn({9000, 8}), home_ranks(9000, 2), at::full({2}, 1000, at::kInt),
             {9000, 8, 2, 3, 2, /*fill=*/true, /*rectify=*/true, /*by_score=*/false});
  // 2^18 counts are two blocks' lists.
  check_plan(run_plan, at::randn({1100, 512}), home_ranks(1100, 256), at::full({256}, 2, at::kInt),
             {1100, 512, 256, 2, 1, /*fill=*/false, /*rectify=*/true, /*by_score=*/false});
}

TEST_CASE("a plan is counted and weighed as plain loops in double do it, and its gradient") {
  check_small_plans(kCpu);
  check_plan_gate_weights(kCpu, 19, 257, 1, 3);  // more experts than the kernels of a GPU take
}

TEST_CASE("the weights of a plan of many rows do not depend on the number of threads") {
  at::manual_seed(9);
  check_plan_gate_weights(kCpu, 4500, 4, 2, 2);
  check_plan_gate_weights(kCpu, 600, 256, 256, 1);
}

// permute and unpermute on the CPU against LibTorch's operations.

TEST_CASE("unpermute adds rows to their tokens, weighted or not, with gradients") {
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

TEST_CASE("permute copies tokens to rows and adds their gradients") {
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

TEST_CASE("unpermute gives the same bits for any number of threads") {
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

TEST_CASE("permute and unpermute refuse what does not fit") {
  const auto permutation = make_permutation(at::tensor({0, 2}, at::kLong), 3);
  CHECK_THROWS(permute(at::zeros({4, 2}), permutation));
  CHECK_THROWS(permute(at::zeros({3, 2}, at::kHalf), permutation));
  CHECK_THROWS(unpermute(at::zeros({3, 2}), permutation));
  CHECK_THROWS(unpermute(at::zeros({2, 2}), permutation, at::ones({2}, at::kDouble)));
  const Tensor list = at::zeros({2}, at::kLong);
  CHECK_THROWS_WITH(segment_rows(list, list, list, list, 3, 1), contains_text("'CPU' backend"));
}
