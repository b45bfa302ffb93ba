#include "kernels/ops/top_k_plan.h"

#include "tests/support/gpu.h"
#include "tests/support/top_k_plan.h"

using at::Tensor;
using moe::kernels::TopKPlanShape;
using moe::test::to_gpu;

namespace {

void check(const Tensor& logits, const Tensor& home, const Tensor& capacity, TopKPlanShape shape) {
  const auto from = moe::test::choices_of(logits, home, shape.ranks, shape.choices);
  const auto expected = moe::test::plan_by_reference(shape, from, home, capacity).all();

  const moe::test::ChoiceTensors there{to_gpu(from.scores), to_gpu(from.choice),
                                       to_gpu(from.at_home), to_gpu(from.requested)};
  const Tensor homes = to_gpu(home), slots = to_gpu(capacity);
  const Tensor scratch = moe::test::poisoned({moe::kernels::top_k_plan_scratch(shape)}, at::kInt);
  const auto to = moe::test::plan_room(shape, homes);
  moe::kernels::top_k_plan_cuda(
      {shape, moe::test::plan_input(there, homes, slots), to.memory(), scratch.data_ptr<int32_t>()},
      moe::test::stream_of(homes));
  // Behind five lists of requests and the rows of each token: where the tokens of ranks begin, from
  // the end, and where they end.
  const Tensor ranges =
      scratch.cpu().narrow(0, 5 * shape.tokens * (shape.k + 1) + shape.tokens, 2 * shape.ranks);
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    const Tensor tokens = (home == rank).nonzero();
    const bool has_any = tokens.numel() > 0;
    CHECK(shape.tokens - ranges[rank].item<int64_t>() ==
          (has_any ? tokens.min().item<int64_t>() : shape.tokens));
    CHECK(ranges[shape.ranks + rank].item<int64_t>() ==
          (has_any ? tokens.max().item<int64_t>() + 1 : 0));
  }
  const auto actual = to.all();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(actual[i].cpu(), expected[i]));
  }
}

Tensor homes_of(int64_t tokens, int64_t ranks) {  // every seventh token is padding
  Tensor home = at::arange(tokens, at::kInt).remainder(ranks);
  home.masked_fill_(at::arange(tokens).remainder(7) == 3, static_cast<int>(ranks));
  return home;
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

TEST_CASE("the kernels select the rows that the reference selects", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int32_t slots : {0, 3, 0x7fffffff}) {
      check_all(at::randn({tokens, 4}), 2, 1, slots);
      check_all(at::randn({tokens, 3}), 1, 2, slots);
    }
    check_all(at::randn({tokens, 2}), 2, 2, 5);  // k = E: there is nothing to fill from
    check_all(at::randn({tokens, 1}), 1, 1, 5);
  }
}

TEST_CASE("the kernels select where the tokens of a rank stand together", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  const int64_t tokens = 1300, experts = 8, ranks = 4;
  const Tensor together = at::arange(tokens, at::kInt) * ranks / tokens;  // f32: rounded down below
  Tensor home = together.floor().to(at::kInt);
  const auto check_homes = [&](const Tensor& homes) {
    check(at::randn({tokens, experts}), homes, at::full({ranks}, 90, at::kInt),
          {tokens, experts, ranks, 3, 2, true, true, false});
  };
  check_homes(home);
  home.narrow(0, 1000, 300).fill_(static_cast<int>(ranks));  // padding behind; no token of rank 3
  home.masked_fill_(home == 3, 2);
  check_homes(home);
  check_homes(home.flip(0));
}

TEST_CASE("the kernels keep the order of ties, and serve one expert that has all",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(5);
  check_all(at::zeros({40, 4}), 2, 2, 5);
  check_all(at::randn({40, 4}).round(), 2, 2, 5);
  Tensor skewed = at::randn({70, 4});
  skewed.select(1, 2) += 20;  // one expert with everything, saturated scores
  check_all(skewed, 1, 1, 20);
  check_all(skewed, 1, 2, 0x7fffffff);
}

TEST_CASE("blocks that share a group's tokens select what one block selects", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const int64_t tokens = 4500, experts = 4;  // five parts, of which the last is short
  const auto check_part = [&](const Tensor& logits, const Tensor& home, const Tensor& capacity) {
    for (const bool by_score : {false, true}) {
      CAPTURE(by_score);
      check(logits, home, capacity,
            {tokens, experts, capacity.size(0), 3, 2, true, true, by_score});
    }
  };
  const Tensor one_rank = at::zeros({tokens}, at::kInt);
  REQUIRE(moe::kernels::top_k_plan_parts({tokens, experts, 1, 3, 2, true, true, false}) == 5);
  const Tensor slots = at::tensor({1700}, at::kInt);
  check_part(at::zeros({tokens, experts}), one_rank, slots);          // nothing but ties
  check_part(at::randn({tokens, experts}).round(), one_rank, slots);  // ties across parts
  Tensor skewed = at::randn({tokens, experts});
  skewed.select(1, 1) += 20;
  check_part(skewed, homes_of(tokens, 1), at::tensor({3000}, at::kInt));
  // Ranks whose tokens are one after the other, and all over.
  const Tensor capacity = at::tensor({900, 40}, at::kInt);
  REQUIRE(moe::kernels::top_k_plan_parts({tokens, experts, 2, 3, 2, true, true, false}) == 3);
  Tensor together = at::zeros({tokens}, at::kInt);
  together.narrow(0, 2000, 2500).fill_(1);
  check_part(at::randn({tokens, experts}), together, capacity);
  check_part(at::randn({tokens, experts}), homes_of(tokens, 2), capacity);
}

TEST_CASE("many tokens of one rank are shared by many blocks, and few by none", "[kernels]") {
  const auto parts = [](int64_t tokens, int64_t experts, int64_t ranks) {
    return moe::kernels::top_k_plan_parts({tokens, experts, ranks, 2, 1, false, false, false});
  };
  CHECK(parts(16384, 8, 1) == 16);
  CHECK(parts(16384, 8, 8) == 2);
  CHECK(parts(16384, 256, 1) == 4);  // 1024 blocks
  CHECK(parts(16384, 256, 8) == 1);
  CHECK(parts(1 << 20, 8, 1) == 32);
  CHECK(parts(0, 8, 1) == 1);
  CHECK(parts(1024, 1, 1) == 1);
}

TEST_CASE("the kernels sort lists that are longer than a block", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  Tensor logits = at::randn({1500, 4});
  logits.select(1, 1) += 4;
  check(logits, homes_of(1500, 1), at::full({1}, 700, at::kInt),
        {1500, 4, 1, 3, 2, true, true, false});
  check(logits, homes_of(1500, 2), at::tensor({700, 20}, at::kInt),
        {1500, 4, 2, 3, 2, true, true, true});
}
