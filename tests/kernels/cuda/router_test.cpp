#include "kernels/ops/router.h"

#include <limits>

#include "tests/kernels/reference/router.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::kernels::RouterChoicesArgs;
using moe::kernels::RouterShape;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

struct Choices {
  Tensor scores, choice, at_home, requested;

  RouterChoicesArgs args(const Tensor& logits, const Tensor& home, const RouterShape& shape) const {
    return {
        logits.const_data_ptr<float>(), home.const_data_ptr<int32_t>(), shape,
        scores.data_ptr<float>(),       choice.data_ptr<int32_t>(),     at_home.data_ptr<int32_t>(),
        requested.data_ptr<int32_t>()};
  }
  Choices on_host() const { return {scores.cpu(), choice.cpu(), at_home.cpu(), requested.cpu()}; }
};

Choices room(const RouterShape& shape) {
  return {poisoned({shape.tokens, shape.experts}, at::kFloat),
          poisoned({shape.tokens, shape.choices}, at::kInt), poisoned({shape.tokens}, at::kInt),
          poisoned({shape.choices, shape.experts * shape.ranks}, at::kInt)};
}

Choices reference(const Tensor& logits, const Tensor& home, const RouterShape& shape) {
  const Choices host = room(shape).on_host();
  moe::test::router_choices_reference(host.args(logits, home, shape));
  return host;
}

Choices on_gpu(const Tensor& logits, const Tensor& home, const RouterShape& shape) {
  const Tensor there = to_gpu(logits), homes = to_gpu(home);
  const Choices choices = room(shape);
  moe::kernels::router_choices_cuda(choices.args(there, homes, shape), stream_of(there));
  return choices.on_host();
}

void check(const Tensor& logits, const Tensor& home, const RouterShape& shape) {
  const Choices expected = reference(logits, home, shape), actual = on_gpu(logits, home, shape);
  // expf to 2 units in the last place, of a difference rounded to 2^-24 of up to 100, over a sum.
  CHECK(at::allclose(actual.scores, expected.scores, 2e-5, 1e-30));
  CHECK(at::equal(actual.choice, expected.choice));
  CHECK(at::equal(actual.at_home, expected.at_home));
  CHECK(at::equal(actual.requested, expected.requested));
}

Tensor homes_of(int64_t tokens, int64_t ranks) {  // every fifth token is padding
  Tensor home = at::arange(tokens, at::kInt).remainder(ranks);
  home.masked_fill_(at::arange(tokens).remainder(5) == 3, static_cast<int>(ranks));
  return home;
}

}  // namespace

TEST_CASE("the router's logits are those of plain loops in double", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 33, 128, 200}) {
      for (const int64_t experts : {1, 7, 8, 12, 35}) {
        CAPTURE(tokens, width, experts);
        const Tensor x = at::randn({tokens, width}).to(at::kBFloat16).to(at::kFloat);
        const Tensor weight = at::randn({experts, width});
        const Tensor expected = at::empty({tokens, experts});
        moe::test::router_logits_reference({x.const_data_ptr(), weight.const_data_ptr<float>(),
                                            expected.data_ptr<float>(), tokens, width, experts,
                                            /*is_bf16=*/false});
        for (const auto type : {at::kFloat, at::kBFloat16}) {  // x is exact in both
          const Tensor in = to_gpu(x.to(type)), by = to_gpu(weight);
          const Tensor logits = poisoned({tokens, experts}, at::kFloat);
          moe::kernels::router_logits_cuda(
              {in.const_data_ptr(), by.const_data_ptr<float>(), logits.data_ptr<float>(), tokens,
               width, experts, type == at::kBFloat16},
              stream_of(in));
          // A lane adds at most 8 products below 20, then 5 levels: 13 * 2^-24 * 200.
          CHECK(at::allclose(logits.cpu(), expected, 1e-6, 2e-4));
        }
      }
    }
  }
}

TEST_CASE("the gradients of the router's logits are those of plain loops in double",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t tokens : {0, 1, 9, 33, 300}) {
    for (const int64_t width : {1, 33, 200, 2056}) {
      for (const int64_t experts : {1, 7, 8, 12, 64}) {
        if (tokens > 33 && width * experts > 4096) {
          continue;
        }
        CAPTURE(tokens, width, experts);
        const Tensor x = at::randn({tokens, width}).to(at::kBFloat16).to(at::kFloat);
        const Tensor weight = at::randn({experts, width}), grad = at::randn({tokens, experts});
        const Tensor to_x = at::empty({tokens, width}), to_weight = at::empty({experts, width});
        moe::test::router_logits_backward_reference(
            {x.const_data_ptr(), weight.const_data_ptr<float>(), grad.const_data_ptr<float>(),
             to_x.data_ptr(), to_weight.data_ptr<float>(), nullptr, tokens, width, experts,
             /*is_bf16=*/false});
        for (const auto type : {at::kFloat, at::kBFloat16}) {  // x is exact in both
          const Tensor in = to_gpu(x.to(type)), by = to_gpu(weight), upstream = to_gpu(grad);
          const Tensor grad_x = poisoned({tokens, width}, type);
          const Tensor grad_weight = poisoned({experts, width}, at::kFloat);
          const Tensor strips =
              poisoned({moe::kernels::router_strips(tokens, experts), experts, width}, at::kFloat);
          moe::kernels::router_logits_backward_cuda(
              {in.const_data_ptr(), by.const_data_ptr<float>(), upstream.const_data_ptr<float>(),
               grad_x.data_ptr(), grad_weight.data_ptr<float>(), strips.data_ptr<float>(), tokens,
               width, experts, type == at::kBFloat16},
              stream_of(in));
          // At most 64 products below 20 in a row for d x, 300 for d weight, each sum rounded to
          // 2^-24 of at most 200; bf16: one rounding of 2^-9 more.
          const double rounding = type == at::kBFloat16 ? 1.0 / (1 << 8) : 0;
          CHECK(at::allclose(grad_x.cpu().to(at::kFloat), to_x, 1e-6 + rounding, 5e-4));
          CHECK(at::allclose(grad_weight.cpu(), to_weight, 1e-6, 2e-3));
        }
      }
    }
  }
}

TEST_CASE("the router's choices are those of the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  for (const int64_t tokens : {0, 1, 31, 33, 90}) {
    for (const int64_t experts : {1, 6, 32, 36, 100, 256}) {
      for (const int64_t ranks : {1, 2}) {
        if (experts % ranks != 0) {
          continue;
        }
        CAPTURE(tokens, experts, ranks);
        const Tensor logits = at::randn({tokens, experts}) * 3, home = homes_of(tokens, ranks);
        const int64_t choices = std::min<int64_t>(experts, 3);
        check(logits, home, {tokens, experts, ranks, choices});

        check(logits.round(), home, {tokens, experts, ranks, choices});  // full of ties
      }
    }
  }
  check(at::randn({9, 5}), homes_of(9, 5), {9, 5, 5, 5});  // every expert is chosen
  // More counters than fit in shared memory.
  check(at::randn({20, 128}), homes_of(20, 16), {20, 128, 16, 4});
}

TEST_CASE("the router orders equal, infinite and saturated logits", "[kernels][gpu]") {
  MOE_NEED_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor logits = at::zeros({4, 4});
  logits[1][2] = -0.0F;  // ties with zero
  logits[2] = at::tensor({-kInfinity, 90.0F, -90.0F, 90.0F});
  logits[3] = at::tensor({-1e30F, -kInfinity, -1e30F, -kInfinity});
  const Tensor home = at::tensor({0, 1, 0, 1}, at::kInt);
  const RouterShape shape{4, 4, 2, 4};
  check(logits, home, shape);
  const Choices choices = on_gpu(logits, home, shape);
  CHECK(at::equal(choices.choice[0], at::tensor({0, 1, 2, 3}, at::kInt)));
  CHECK(at::equal(choices.choice[1], at::tensor({0, 1, 2, 3}, at::kInt)));
  CHECK(at::equal(choices.choice[2], at::tensor({1, 3, 2, 0}, at::kInt)));
  CHECK(choices.at_home[1].item<int32_t>() == 2);
}
