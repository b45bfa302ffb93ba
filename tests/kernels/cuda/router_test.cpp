#include "kernels/ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/reference/plan_cases.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

ChoiceTensors check(const Tensor& logits, const Tensor& source_rank, const RouterShape& shape) {
  const auto& [tokens, experts, ranks, choices] = shape;
  CAPTURE(tokens, experts, ranks, choices);
  const Tensor there = to_gpu(logits), homes = to_gpu(source_rank);
  const auto actual = in_two_orders([&, tokens = tokens, choices = choices] {
    const ChoiceTensors to{poisoned(logits.sizes(), at::kFloat),
                           poisoned({tokens, choices}, at::kInt), poisoned({tokens}, at::kInt),
                           poisoned({choices, shape.experts * shape.ranks}, at::kInt)};
    router_choices_cuda({there.const_data_ptr<float>(), homes.const_data_ptr<int32_t>(), shape,
                         to.scores.data_ptr<float>(), to.choice.data_ptr<int32_t>(),
                         to.local_choice.data_ptr<int32_t>(), to.requested.data_ptr<int32_t>()},
                        stream_of(there));
    return std::vector{to.scores, to.choice, to.local_choice, to.requested};
  });
  const ChoiceTensors expected = choices_of(logits, source_rank, ranks, choices);
  // expf to 2 units in the last place, of a difference rounded to 2^-24 of up to 100, over a sum.
  CHECK(at::allclose(actual[0], expected.scores, 2e-5, 1e-30));
  CHECK(at::equal(actual[1], expected.choice));
  CHECK(at::equal(actual[2], expected.local_choice));
  CHECK(at::equal(actual[3], expected.requested));
  return {actual[0], actual[1], actual[2], actual[3]};
}

// Logits and their gradients against products in double.
void check_logits(int64_t tokens, int64_t width, int64_t experts) {
  const Tensor x = at::randn({tokens, width}).to(at::kBFloat16), wide = x.to(at::kDouble);
  const Tensor weight = at::randn({experts, width}), grad = at::randn({tokens, experts});
  const Tensor wide_weight = weight.to(at::kDouble), wide_grad = grad.to(at::kDouble);
  for (const auto type : {at::kFloat, at::kBFloat16}) {  // x is exact in both
    CAPTURE(tokens, width, experts, type);
    const bool is_bf16 = type == at::kBFloat16;
    const Tensor in = to_gpu(x.to(type)), by = to_gpu(weight), upstream = to_gpu(grad);
    const Tensor logits = poisoned({tokens, experts}, at::kFloat);
    router_logits_cuda({in.const_data_ptr(), by.const_data_ptr<float>(), logits.data_ptr<float>(),
                        tokens, width, experts, is_bf16},
                       stream_of(in));
    const Tensor grad_x = poisoned({tokens, width}, type);
    const Tensor grad_weight = poisoned({experts, width}, at::kFloat);
    const Tensor strips = poisoned({router_strips(tokens, experts), experts, width}, at::kFloat);
    router_logits_backward_cuda(
        {in.const_data_ptr(), by.const_data_ptr<float>(), upstream.const_data_ptr<float>(),
         grad_x.data_ptr(), grad_weight.data_ptr<float>(), strips.data_ptr<float>(), tokens, width,
         experts, is_bf16},
        stream_of(in));
    const auto close = [](const Tensor& actual, const Tensor& expected, double rounding,
                          double most) {
      return at::allclose(actual.cpu().to(at::kDouble), expected, 1e-6 + rounding, most);
    };
    // A lane adds width / 32 products below 25, a warp adds its lanes in 5 levels, and the sums are
    // below 25 sqrt(width / 16).
    const double roundings = static_cast<double>(width) / 32 + 6;
    const double sum = 25 * std::max(4.0, std::sqrt(static_cast<double>(width) / 16));
    CHECK(close(logits, wide.mm(wide_weight.t()), 0, roundings * sum / (1 << 24)));
    // `experts` products below 20 in a row for d x, at most 300 for d weight, each sum rounded to
    // 2^-24 of at most 200; bf16: one rounding of 2^-9 more.
    const double apart = 5e-4 * std::max(1.0, static_cast<double>(experts) / 64);
    CHECK(close(grad_x, wide_grad.mm(wide_weight), is_bf16 ? 1.0 / (1 << 8) : 0, apart));
    CHECK(close(grad_weight, wide_grad.t().mm(wide), 0, 2e-3));
  }
}

}  // namespace

TEST_CASE("the router's logits and their gradients are products in double", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  for (const int64_t tokens : {0, 1, 9, 33}) {
    for (const int64_t experts : {1, 7, 8, 12, 35}) {
      check_logits(tokens, 1, experts);
      check_logits(tokens, 33, experts);
      check_logits(tokens, 200, experts);
    }
  }
  check_logits(9, 128, 64);
  check_logits(9, 2056, 8);
  check_logits(300, 33, 12);  // two strips of tokens
}

TEST_CASE("the router's choices are those of the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  for (const int64_t tokens : {0, 1, 33, 90}) {
    for (const auto& [experts, ranks] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {6, 2}, {32, 1}, {36, 2}, {100, 1}, {256, 2}}) {
      const Tensor logits = at::randn({tokens, experts}) * 3,
                   source_rank = home_ranks(tokens, ranks);
      const int64_t choices = std::min<int64_t>(experts, 3);
      check(logits, source_rank, {tokens, experts, ranks, choices});
      check(logits.round(), source_rank, {tokens, experts, ranks, choices});  // full of ties
    }
  }
  check(at::randn({9, 5}), home_ranks(9, 5), {9, 5, 5, 5});  // every expert is chosen
  // More counters than fit in shared memory.
  check(at::randn({20, 128}), home_ranks(20, 16), {20, 128, 16, 4});
}

TEST_CASE("the router orders equal, infinite and saturated logits", "[kernels][gpu]") {
  MOE_NEED_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor logits = at::zeros({4, 4});
  logits[1][2] = -0.0F;  // ties with zero
  logits[2] = at::tensor({-kInfinity, 90.0F, -90.0F, 90.0F});
  logits[3] = at::tensor({-1e30F, -kInfinity, -1e30F, -kInfinity});
  const auto choices = check(logits, at::tensor({0, 1, 0, 1}, at::kInt), {4, 4, 2, 4});
  const Tensor expected = at::tensor({0, 1, 2, 3, 0, 1, 2, 3, 1, 3, 2, 0}, at::kInt);
  CHECK(at::equal(choices.choice.narrow(0, 0, 3).flatten(), expected));
  CHECK(choices.local_choice[1].item<int32_t>() == 2);
}

TEST_CASE("the router's kernels take the tokens of a large batch", "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  for (const int64_t experts : {8, 64, 256}) {
    check(at::randn({16'384, experts}) * 2, home_ranks(16'384, 2), {16'384, experts, 2, 3});
    check_logits(300, 4096, experts);
  }
}
