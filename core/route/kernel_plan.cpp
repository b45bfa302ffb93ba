#include "core/route/kernel_plan.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/route/rows.h"

namespace moe::route {

namespace {

using kernels::TopKPlanShape;

// [W] i32 on the device of the logits, filled there: a copy from the host would wait.
at::Tensor slots_of_ranks(const RouteInput& input) {
  const auto ranks = static_cast<int64_t>(input.capacity.size());
  const at::Tensor slots = at::full({ranks}, std::numeric_limits<int32_t>::max(),
                                    input.logits.options().dtype(at::kInt));
  for (int64_t first = 0, end = 0; !input.dropless && first < ranks; first = end) {
    const int64_t capacity = input.capacity[first];
    while (end < ranks && input.capacity[end] == capacity) {
      ++end;
    }
    slots.narrow(0, first, end - first).fill_(capacity);
  }
  return slots;
}

// Rows that there can be at most, and that the rules make room for.
int64_t most_rows(const RouteInput& input, const TopKPlanShape& shape) {
  int64_t rows = shape.tokens * shape.k;
  rows = input.dropless ? rows : accepted_max(input, rows);
  if (shape.fill) {
    rows += shape.tokens;
    rows = input.dropless ? rows : accepted_max(input, rows);
  }
  return rows + (shape.rectify ? shape.tokens : 0);
}

Plan room_for(const RouteInput& input, const TopKPlanShape& shape) {
  const auto longs = [&](int64_t count) {
    return at::empty({count}, input.logits.options().dtype(at::kLong));
  };
  const int64_t rows = most_rows(input, shape);
  const int64_t refused = input.dropless ? 0 : shape.tokens * shape.k;
  return {longs(rows),          longs(rows),    longs(rows),    longs(rows),
          longs(shape.experts), longs(refused), longs(refused), longs(refused)};
}

kernels::TopKPlanRows memory_of(const Plan& plan) {
  return {plan.token.data_ptr<int64_t>(),
          plan.expert.data_ptr<int64_t>(),
          plan.choice.data_ptr<int64_t>(),
          plan.count.data_ptr<int64_t>(),
          plan.token.size(0),
          plan.rows.data_ptr<int64_t>(),
          plan.overflow_token.data_ptr<int64_t>(),
          plan.overflow_expert.data_ptr<int64_t>(),
          plan.overflow_choice.data_ptr<int64_t>(),
          plan.overflow_token.size(0)};
}

// What the choices of tokens are written to.
struct ChoiceTensors {
  at::Tensor scores, choice, at_home, requested;
};

// Where a bias orders a token's choices, they are read out of that order: on the CPU alone.
ChoiceTensors choose(const RouteInput& input, const at::Tensor& home, const TopKPlanShape& shape) {
  const auto ints = input.logits.options().dtype(at::kInt);
  ChoiceTensors to{at::empty_like(input.logits, at::MemoryFormat::Contiguous),
                   at::empty({shape.tokens, shape.choices}, ints), at::empty({shape.tokens}, ints),
                   at::empty({shape.choices, shape.experts * shape.ranks}, ints)};
  const at::Tensor logits = input.logits.contiguous();
  kernels::run_on(logits,
                  kernels::RouterChoicesArgs{
                      logits.const_data_ptr<float>(),
                      home.const_data_ptr<int32_t>(),
                      {shape.tokens, shape.experts, shape.ranks, shape.choices, /*is_relu=*/false},
                      to.scores.data_ptr<float>(),
                      to.choice.data_ptr<int32_t>(),
                      to.at_home.data_ptr<int32_t>(),
                      to.requested.data_ptr<int32_t>()},
                  &kernels::CudaFunctions::router_choices, kernels::router_choices_cpu);
  if (!input.ranked.is_same(input.by_logit)) {
    MOE_CHECK(input.logits.is_cpu());
    to.choice = input.ranked.narrow(1, 0, shape.choices).to(at::kInt).contiguous();
  }
  return to;
}

kernels::PlanTensors tensors_of(const RouteInput& input, const Plan& plan) {
  return {plan.token, plan.expert,     plan.choice, plan.count,
          input.home, input.experts(), input.ranks, input.k};
}

}  // namespace

Plan plan_by_kernels(const RouteInput& input, const RouterSettings& settings) {
  MOE_CHECK(input.logits.scalar_type() == at::kFloat);
  const int64_t experts = input.experts();
  const bool has_next = input.k < experts;
  const TopKPlanShape shape{input.tokens(), experts,
                            input.ranks,    has_next ? input.k + 1 : input.k,
                            input.k,        settings.fr && has_next,
                            settings.ir,    settings.slot_order == SlotOrder::kScore};
  const at::Tensor home = input.home.to(at::kInt), slots = slots_of_ranks(input);
  const at::Tensor scores = input.scores.contiguous();  // what the rules compare by
  const ChoiceTensors from = choose(input, home, shape);
  const kernels::TopKPlanInput in{
      scores.const_data_ptr<float>(),           from.choice.const_data_ptr<int32_t>(),
      from.at_home.const_data_ptr<int32_t>(),   home.const_data_ptr<int32_t>(),
      from.requested.const_data_ptr<int32_t>(), slots.const_data_ptr<int32_t>()};
  const Plan plan = room_for(input, shape);
  const at::Tensor scratch =
      at::empty({home.is_cuda() ? kernels::top_k_plan_scratch(shape) : 0}, home.options());
  kernels::run_on(input.logits,
                  kernels::TopKPlanArgs{shape, in, memory_of(plan), scratch.data_ptr<int32_t>()},
                  &kernels::CudaFunctions::top_k_plan, kernels::top_k_plan_cpu);
  return plan;
}

kernels::PlanCounts count_by_kernels(const RouteInput& input, const Plan& plan,
                                     const RouterSettings& settings) {
  return kernels::count_plan(input.logits.contiguous(), input.scores.contiguous(),
                             tensors_of(input, plan), settings.ir, input.dropless);
}

kernels::PlanWeights weigh_by_kernels(const at::Tensor& logits, const at::Tensor& count,
                                      const RouteInput& input, const Plan& plan,
                                      const KernelGates& gates) {
  const auto in_use = std::count_if(input.rank_tokens.begin(), input.rank_tokens.end(),
                                    [](int64_t tokens) { return tokens > 0; });
  kernels::PlanWeights found = kernels::weigh_plan(
      logits, count, input.by_logit, tensors_of(input, plan),
      {gates.normalise, gates.straight_through, gates.lb_choices, std::max<int64_t>(in_use, 1)});
  if (!input.wants_z_loss) {
    found.z = at::Tensor();
  }
  return found;
}

}  // namespace moe::route
