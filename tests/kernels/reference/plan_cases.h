#pragma once
// Cases of a top-k router's plan for the kernels of any device, against the reference.

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/top_k_plan.h"

namespace moe::test {

// Ranks of tokens in turn; every seventh token is padding.
inline at::Tensor home_ranks(int64_t tokens, int64_t ranks) {
  at::Tensor source_rank = at::arange(tokens, at::kInt).remainder(ranks);
  source_rank.masked_fill_(at::arange(tokens).remainder(7) == 3, static_cast<int>(ranks));
  return source_rank;
}

// run(shape, choices, home, capacity) runs the kernel and returns PlanTensors::all() on the CPU.
template <typename Run>
void check_plan(Run run, const at::Tensor& logits, const at::Tensor& source_rank,
                const at::Tensor& capacity, const kernels::TopKPlanShape& shape) {
  CAPTURE(shape.tokens, shape.experts, shape.ranks, shape.k, shape.fill, shape.rectify,
          shape.by_score);
  const ChoiceTensors from = choices_of(logits, source_rank, shape.ranks, shape.choices);
  const auto expected = plan_by_reference(shape, from, source_rank, capacity).all();
  const std::vector<at::Tensor> actual = run(shape, from, source_rank, capacity);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(actual[i], expected[i]));
  }
}

// Every modifier over one batch.
template <typename Run>
void check_modifiers(Run run, const at::Tensor& logits, int64_t ranks, int64_t k, int32_t slots) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  const int64_t choices = std::min(k + 1, experts);
  for (int modifiers = 0; modifiers < 8; ++modifiers) {
    const bool fill = (modifiers & 1) != 0 && k < experts;
    check_plan(
        run, logits, home_ranks(tokens, ranks), at::full({ranks}, slots, at::kInt),
        {tokens, experts, ranks, choices, k, fill, (modifiers & 2) != 0, (modifiers & 4) != 0});
  }
}

template <typename Run>
void check_batches(Run run, const std::vector<int64_t>& tokens, const std::vector<int32_t>& slots) {
  at::manual_seed(4);
  for (const int64_t count : tokens) {
    for (const int32_t each : slots) {
      check_modifiers(run, at::randn({count, 4}), 2, 1, each);
      check_modifiers(run, at::randn({count, 3}), 1, 2, each);
    }
    check_modifiers(run, at::randn({count, 2}), 2, 2, 5);  // k = E: no expert is left to fill
    check_modifiers(run, at::randn({count, 1}), 1, 1, 5);
  }
}

// Ties, which keep the order of tokens, and one expert with every token and saturated scores.
template <typename Run>
void check_ties(Run run, int64_t tokens) {
  at::manual_seed(5);
  check_modifiers(run, at::zeros({tokens, 4}), 2, 2, 5);
  check_modifiers(run, at::randn({tokens, 4}).round(), 2, 2, 5);
  at::Tensor skewed = at::randn({tokens, 4});
  skewed.select(1, 2) += 20;
  check_modifiers(run, skewed, 1, 1, 20);
  check_modifiers(run, skewed, 1, 2, 0x7fffffff);
}

}  // namespace moe::test
