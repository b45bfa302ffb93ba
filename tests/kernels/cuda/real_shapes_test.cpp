// The kernels whose indices are arithmetic, at the size of a real layer: 16,384 tokens of width
// 4,096 with 8, 64 and 256 experts. Kernels whose warps share memory run twice, on the emulator in
// two orders of its threads, and must give the same numbers both times.

#include "kernels/ops/permute.h"
#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"
#include "tests/support/gpu.h"
#include "tests/support/segments.h"

using at::Tensor;
using namespace moe::kernels;
using moe::test::in_two_orders;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

constexpr int64_t kTokens = 16'384, kWidth = 4'096;

Tensor random_rows(int64_t rows) { return at::randn({rows, kWidth}).to(at::kBFloat16); }

void check_logits(int64_t experts) {
  CAPTURE(experts);
  at::manual_seed(1);
  const Tensor x = random_rows(kTokens), weight = at::randn({experts, kWidth});
  const Tensor in = to_gpu(x), by = to_gpu(weight);
  const Tensor to = poisoned({kTokens, experts}, at::kFloat);
  router_logits_cuda({in.const_data_ptr(), by.const_data_ptr<float>(), to.data_ptr<float>(),
                      kTokens, kWidth, experts, /*is_bf16=*/true},
                     stream_of(in));
  const Tensor logits = to.cpu();
  const Tensor factors = weight.t().to(at::kDouble);
  for (int64_t first = 0; first < kTokens; first += 2'048) {
    CAPTURE(first);
    const Tensor expected = at::mm(x.narrow(0, first, 2'048).to(at::kDouble), factors);
    // A lane adds 128 products below 25, then 5 levels, to sums below 400: 133 * 2^-24 * 400.
    CHECK(at::allclose(logits.narrow(0, first, 2'048).to(at::kDouble), expected, 0, 3.2e-3));
  }
}

// The choices, the plan by them, and its rows in segments.
void check_plan(int64_t experts, int64_t ranks) {
  CAPTURE(experts, ranks);
  at::manual_seed(2);
  const Tensor logits = at::randn({kTokens, experts}) * 2;
  Tensor home = at::arange(kTokens, at::kInt).remainder(ranks);
  home.masked_fill_(at::arange(kTokens).remainder(7) == 3, static_cast<int>(ranks));  // padding
  const Tensor there = to_gpu(logits), homes = to_gpu(home);
  const moe::test::ChoiceTensors expected = moe::test::choices_of(logits, home, ranks, 3);
  const auto choices = in_two_orders([&] {
    const RouterShape shape{kTokens, experts, ranks, 3};
    const Tensor scores = poisoned({kTokens, experts}, at::kFloat);
    const Tensor choice = poisoned({kTokens, 3}, at::kInt), best = poisoned({kTokens}, at::kInt);
    const Tensor requested = poisoned({3, experts * ranks}, at::kInt);
    router_choices_cuda({there.const_data_ptr<float>(), homes.const_data_ptr<int32_t>(), shape,
                         scores.data_ptr<float>(), choice.data_ptr<int32_t>(),
                         best.data_ptr<int32_t>(), requested.data_ptr<int32_t>()},
                        stream_of(there));
    return std::vector{scores, choice, best, requested};
  });
  // expf to 2 units in the last place, of a difference rounded to 2^-24 of up to 100, over a sum.
  CHECK(at::allclose(choices[0], expected.scores, 2e-5, 1e-30));
  CHECK(at::equal(choices[1], expected.choice));
  CHECK(at::equal(choices[2], expected.at_home));
  CHECK(at::equal(choices[3], expected.requested));

  // top2+ir+fr, with slots for nine tenths of the requests.
  const auto slots = static_cast<int>(kTokens * 2 * 9 / 10 / experts / ranks);
  const Tensor capacity = at::full({ranks}, slots, at::kInt);
  const TopKPlanShape shape{kTokens, experts, ranks, 3, 2, true, true, false};
  const auto plan = moe::test::plan_by_reference(shape, expected, home, capacity).all();
  const moe::test::ChoiceTensors from{to_gpu(expected.scores), to_gpu(expected.choice),
                                      to_gpu(expected.at_home), to_gpu(expected.requested)};
  const Tensor slots_there = to_gpu(capacity);
  const auto selected = in_two_orders([&] {
    const Tensor scratch = poisoned({top_k_plan_scratch(shape)}, at::kInt);
    const auto to = moe::test::plan_room(shape, homes);
    top_k_plan_cuda({shape, moe::test::plan_input(from, homes, slots_there), to.memory(),
                     scratch.data_ptr<int32_t>()},
                    stream_of(homes));
    return to.all();
  });
  for (size_t i = 0; i < plan.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(selected[i], plan[i]));
  }
}

// Rows of top-1 with slots for nine tenths of the tokens; some tokens have none.
void check_rows(int64_t experts) {
  CAPTURE(experts);
  at::manual_seed(3);
  const auto segments = moe::test::random_segments(
      kTokens, experts, 1, static_cast<int32_t>(kTokens * 9 / 10 / experts), 0.5);
  const moe::test::SegmentTensors& host = segments.by_reference;
  const moe::test::PlanTensors plan{to_gpu(segments.plan.token),
                                    to_gpu(segments.plan.expert),
                                    to_gpu(segments.plan.choice),
                                    {},
                                    to_gpu(segments.plan.rows),
                                    {},
                                    {},
                                    {}};
  const auto laid_out = in_two_orders([&] {
    const auto to = segments.room(plan.token);
    segment_rows_cuda(segments.args(plan, to), stream_of(plan.token));
    return std::vector{to.row_token, to.row_of_token, to.row_of_plan, to.ends};
  });
  CHECK(at::equal(laid_out[0], host.row_token));
  CHECK(at::equal(laid_out[1], host.row_of_token));
  CHECK(at::equal(laid_out[2], host.row_of_plan));
  CHECK(at::equal(laid_out[3], host.ends));

  const int64_t used = host.ends[-1].item<int64_t>();
  const PermuteShape shape{kTokens, segments.rows(), kWidth, segments.columns};
  const Tensor token = to_gpu(host.row_token), row_of_token = to_gpu(host.row_of_token);
  const Tensor ends = to_gpu(host.ends);
  const int32_t* used_there = ends.const_data_ptr<int32_t>() + experts - 1;
  const Tensor tokens = host.row_token.narrow(0, 0, used), has_token = tokens >= 0;
  const Tensor x = random_rows(kTokens), in = to_gpu(x);
  const Tensor rows_there = poisoned({shape.rows, kWidth}, at::kBFloat16);
  permute_cuda({token.const_data_ptr<int64_t>(), used_there, shape, in.const_data_ptr(),
                rows_there.data_ptr(), PermuteDtype::kBF16},
               stream_of(in));
  const Tensor rows = rows_there.cpu();
  const Tensor gathered = x.index_select(0, tokens.clamp_min(0)).mul_(has_token.unsqueeze(1));
  CHECK(at::equal(rows.narrow(0, 0, used), gathered));
  CHECK(rows.narrow(0, used, shape.rows - used).isnan().all().item<bool>());

  const Tensor weight = at::rand({shape.rows}) + 0.5, weight_there = to_gpu(weight);
  const Tensor y = poisoned({kTokens, kWidth}, at::kFloat);
  unpermute_cuda({token.const_data_ptr<int64_t>(), row_of_token.const_data_ptr<int32_t>(), shape,
                  rows_there.const_data_ptr(), /*is_weighted=*/true, weight_there.const_data_ptr(),
                  y.data_ptr(), PermuteDtype::kBF16},
                 stream_of(in));
  // Every row of a token is the token: its sum is the sum of its weights.
  const Tensor factor = at::zeros({kTokens}).index_add_(0, tokens.clamp_min(0),
                                                        weight.narrow(0, 0, used).mul(has_token));
  // Three products and sums of numbers below 20.
  CHECK(at::allclose(y.cpu(), x.to(at::kFloat).mul_(factor.unsqueeze(1)), 1e-6, 1e-5));

  const Tensor upstream = to_gpu(x.to(at::kFloat));
  const Tensor to_rows = poisoned({shape.rows, kWidth}, at::kBFloat16);
  const Tensor to_weight = poisoned({shape.rows}, at::kFloat);
  unpermute_backward_cuda(
      {token.const_data_ptr<int64_t>(), used_there, shape, rows_there.const_data_ptr(),
       weight_there.const_data_ptr(), upstream.const_data_ptr(), to_rows.data_ptr(),
       to_weight.data_ptr(), PermuteDtype::kBF16},
      stream_of(in));
  const Tensor expected = gathered.to(at::kFloat).mul_(weight.narrow(0, 0, used).unsqueeze(1));
  CHECK(at::equal(to_rows.cpu().narrow(0, 0, used), expected.to(at::kBFloat16)));
  const Tensor squares = gathered.to(at::kFloat).pow_(2).sum(1, false, at::kDouble);
  // A lane adds 128 squares below 32, then 5 levels, to a sum below 5000: 133 * 2^-24 * 5000.
  CHECK(at::allclose(to_weight.cpu().narrow(0, 0, used).to(at::kDouble), squares, 0, 4e-2));
}

}  // namespace

TEST_CASE("a real layer's router gives the logits of double sums", "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_logits(8);
}

TEST_CASE("many experts' logits are those of double sums", "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  check_logits(64);
  check_logits(256);
}

TEST_CASE("a real layer's plan is that of the reference", "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_plan(8, 2);
}

TEST_CASE("many experts' plan is that of the reference", "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  check_plan(64, 8);
  check_plan(256, 1);
}

TEST_CASE("a real layer's rows go to their experts and back", "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_rows(8);
}

TEST_CASE("many experts' rows go to them and back", "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  check_rows(64);
  check_rows(256);
}
