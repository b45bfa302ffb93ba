// The CPU kernels of a routing plan: choices of tokens, a top-k plan, counts and weights of a plan.

#include <limits>

#include "kernels/ops/plan_gate_weights.h"
#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"
#include "tests/kernels/reference/plan_cases.h"
#include "tests/kernels/reference/weight_cases.h"
#include "tests/support/threads.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

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

TEST_CASE("experts are ordered as a stable sort orders them", "[kernels]") {
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

TEST_CASE("a token's choices and the best expert of its own rank are those of the reference",
          "[kernels]") {
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

TEST_CASE("a plan has the rows that the reference selects", "[kernels]") {
  check_batches(run_plan, {0, 1, 31, 33, 700}, {0, 3, 90, 0x7fffffff});
}

TEST_CASE("a plan keeps the order of ties, and serves one expert that has all", "[kernels]") {
  check_ties(run_plan, 40);
  check_ties(run_plan, 1500);
}

TEST_CASE("threads share the tokens of a plan, whose blocks are longer for many lists",
          "[kernels]") {
  at::manual_seed(7);
  check_plan(run_plan, at::randn({9000, 8}), home_ranks(9000, 2), at::full({2}, 1000, at::kInt),
             {9000, 8, 2, 3, 2, /*fill=*/true, /*rectify=*/true, /*by_score=*/false});
  // 2^18 counts are two blocks' lists.
  check_plan(run_plan, at::randn({1100, 512}), home_ranks(1100, 256), at::full({256}, 2, at::kInt),
             {1100, 512, 256, 2, 1, /*fill=*/false, /*rectify=*/true, /*by_score=*/false});
}

const PlanKernels kCpu{poisoned_host,
                       [](const Tensor& tensor) { return tensor; },
                       plan_counts_cpu,
                       plan_gate_weights_cpu,
                       plan_gate_weights_backward_cpu,
                       [](auto run) { return by_any_threads(run); }};

TEST_CASE("a plan is counted and weighed as plain loops in double do it, and its gradient",
          "[kernels]") {
  check_small_plans(kCpu);
  check_plan_gate_weights(kCpu, 19, 257, 1, 3);  // more experts than the kernels of a GPU take
}

TEST_CASE("threads share a plan of many rows and weigh it alike", "[kernels]") {
  at::manual_seed(9);
  check_plan_gate_weights(kCpu, 4500, 4, 2, 2);
  check_plan_gate_weights(kCpu, 600, 256, 256, 1);
}

}  // namespace
