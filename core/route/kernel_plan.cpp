#include "core/route/kernel_plan.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/route/rows.h"
#include "kernels/ops/operations.h"

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

// The choices of tokens, as kernels::RouterChoicesArgs has them.
struct ChoiceTensors {
  at::Tensor choice, at_home, requested;
};

// Where a bias orders a token's choices, they are read out of that order: on the CPU alone.
ChoiceTensors choose(const RouteInput& input, const at::Tensor& home, const TopKPlanShape& shape) {
  static const kernels::Operation<decltype(kernels::router_choices_on<kernels::router_choices_cpu>)>
      operation("moe::router_choices");
  const auto [scores, choice, at_home, requested] =
      operation(input.logits, home, shape.ranks, shape.choices);
  if (input.ranked.is_same(input.by_logit)) {
    return {choice, at_home, requested};
  }
  MOE_CHECK(input.logits.is_cpu());
  return {input.ranked.narrow(1, 0, shape.choices).to(at::kInt).contiguous(), at_home, requested};
}

kernels::PlanTensors tensors_of(const RouteInput& input, const Plan& plan) {
  return {plan.token, plan.expert, plan.choice, plan.count, input.home, input.ranks, input.k};
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
  static const kernels::Operation<decltype(kernels::top_k_plan_on<kernels::top_k_plan_cpu>)>
      operation("moe::top_k_plan");
  const std::vector<at::Tensor> found =
      operation(scores, from.choice, from.at_home, home, from.requested, slots, shape.k, shape.fill,
                shape.rectify, shape.by_score, most_rows(input, shape),
                input.dropless ? 0 : shape.tokens * shape.k);
  return {found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7]};
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
