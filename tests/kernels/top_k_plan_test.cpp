#include "kernels/ops/top_k_plan.h"

#include "tests/support/threads.h"
#include "tests/support/top_k_plan.h"

using at::Tensor;
using moe::kernels::TopKPlanShape;

namespace {

Tensor homes_of(int64_t tokens, int64_t ranks) {  // every seventh token is padding
  Tensor home = at::arange(tokens, at::kInt).remainder(ranks);
  home.masked_fill_(at::arange(tokens).remainder(7) == 3, static_cast<int>(ranks));
  return home;
}

void check(const Tensor& logits, const Tensor& home, const Tensor& capacity,
           const TopKPlanShape& shape) {
  const auto from = moe::test::choices_of(logits, home, shape.ranks, shape.choices);
  const auto expected = moe::test::plan_by_reference(shape, from, home, capacity).all();
  auto in = moe::test::plan_input(from, home, capacity);
  in.requested = nullptr;  // as is promised
  const auto actual = moe::test::by_any_threads([&] {
    const auto to = moe::test::plan_room(shape, home);
    moe::kernels::top_k_plan_cpu({shape, in, to.memory(), nullptr});
    return to.all();
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(actual[i], expected[i]));
  }
}

// Every modifier over one batch.
void check_all(const Tensor& logits, int64_t ranks, int64_t k, int32_t slots) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  const Tensor home = homes_of(tokens, ranks), capacity = at::full({ranks}, slots, at::kInt);
  const int64_t choices = std::min(k + 1, experts);
  for (const bool fill : {false, true}) {
    for (const bool rectify : {false, true}) {
      for (const bool by_score : {false, true}) {
        CAPTURE(tokens, experts, ranks, k, slots, fill, rectify, by_score);
        const bool fills = fill && k < experts;
        check(logits, home, capacity,
              {tokens, experts, ranks, choices, k, fills, rectify, by_score});
      }
    }
  }
}

}  // namespace

TEST_CASE("a plan has the rows that the reference selects", "[kernels]") {
  at::manual_seed(4);
  for (const int64_t tokens : {0, 1, 31, 33, 1300}) {
    for (const int32_t slots : {0, 3, 90, 0x7fffffff}) {
      check_all(at::randn({tokens, 4}), 2, 1, slots);
      check_all(at::randn({tokens, 3}), 1, 2, slots);
    }
    check_all(at::randn({tokens, 2}), 2, 2, 5);  // k = E: there is nothing to fill from
    check_all(at::randn({tokens, 1}), 1, 1, 5);
  }
}

TEST_CASE("a plan keeps the order of ties, and serves one expert that has all", "[kernels]") {
  at::manual_seed(5);
  for (const int64_t tokens : {40, 1500}) {
    check_all(at::zeros({tokens, 4}), 2, 2, 5);
    check_all(at::randn({tokens, 4}).round(), 2, 2, 5);
    Tensor skewed = at::randn({tokens, 4});
    skewed.select(1, 2) += 20;  // one expert with everything, saturated scores
    check_all(skewed, 1, 1, 20);
    check_all(skewed, 1, 2, 0x7fffffff);
  }
}

TEST_CASE("threads share the blocks of many tokens", "[kernels]") {
  at::manual_seed(7);
  const int64_t tokens = 9000, experts = 8, ranks = 2;
  check(at::randn({tokens, experts}), homes_of(tokens, ranks), at::full({ranks}, 1000, at::kInt),
        {tokens, experts, ranks, 3, 2, /*fill=*/true, /*rectify=*/true, /*by_score=*/false});
}

TEST_CASE("a plan of many lists counts in fewer, longer blocks of tokens", "[kernels]") {
  at::manual_seed(6);
  const int64_t tokens = 1100, experts = 512, ranks = 256;  // 2^18 counts are two blocks' lists
  check(at::randn({tokens, experts}), homes_of(tokens, ranks), at::full({ranks}, 2, at::kInt),
        {tokens, experts, ranks, 2, 1, /*fill=*/false, /*rectify=*/true, /*by_score=*/false});
}
