#include "kernels/ops/router.h"

#include <limits>

#include "tests/support/threads.h"
#include "tests/support/top_k_plan.h"

using at::Tensor;
using namespace moe::kernels;

namespace {

Tensor order_of(const Tensor& logits) {
  return moe::test::by_any_threads([&] {
    const Tensor order = at::full(logits.sizes(), -1, at::kLong);
    expert_order_cpu({logits.const_data_ptr<float>(), order.data_ptr<int64_t>(), logits.size(0),
                      logits.size(1)});
    return std::vector<Tensor>{order};
  })[0];
}

void check_order(const Tensor& logits) {
  CAPTURE(logits.sizes());
  CHECK(at::equal(order_of(logits), std::get<1>(at::sort(logits, /*stable=*/true, 1,
                                                         /*descending=*/true))));
}

void check_choices(const Tensor& logits, const Tensor& home, int64_t ranks, int64_t choices) {
  CAPTURE(logits.sizes(), ranks, choices);
  const auto expected = moe::test::choices_of(logits, home, ranks, choices);
  const auto actual = moe::test::by_any_threads([&] {
    const Tensor choice = at::full({logits.size(0), choices}, -2, at::kInt);
    const Tensor at_home = at::full({logits.size(0)}, -2, at::kInt);
    router_choices_cpu({logits.const_data_ptr<float>(),
                        home.const_data_ptr<int32_t>(),
                        {logits.size(0), logits.size(1), ranks, choices},
                        nullptr,
                        choice.data_ptr<int32_t>(),
                        at_home.data_ptr<int32_t>(),
                        nullptr});
    return std::vector<Tensor>{choice, at_home};
  });
  CHECK(at::equal(actual[0], expected.choice));
  CHECK(at::equal(actual[1], expected.at_home));
}

}  // namespace

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

TEST_CASE("a token's choices and its best expert at home are those of the reference", "[kernels]") {
  at::manual_seed(2);
  for (const int64_t tokens : {0, 1, 31, 33, 700}) {
    for (const int64_t ranks : {1, 2, 4}) {
      Tensor home = at::arange(tokens, at::kInt).remainder(ranks);
      home.masked_fill_(at::arange(tokens).remainder(7) == 3, static_cast<int>(ranks));
      for (const int64_t choices : {1, 2, 8}) {
        check_choices(at::randn({tokens, 8}), home, ranks, choices);
        check_choices(at::randn({tokens, 8}).round(), home, ranks, choices);
      }
    }
  }
}
