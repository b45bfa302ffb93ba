#include "core/route/routers/top_k.h"

#include <limits>

#include "core/route/plan.h"
#include "core/route/route.h"
#include "kernels/ops/operations.h"
#include "kernels/ops/plan_tensors.h"

namespace moe::route {
namespace {

// Returns the rule by which every token requests the first k experts of its choice order
// (Rectify-Router, Eq. 1). Rows of an expert are sorted by choice (unless order=score), then score,
// then token (README.md, "Slots are assigned choice by choice").
Rule request(SlotOrder order) {
  return [order](const RouteInput& input, const Plan&) {
    const at::Tensor experts = input.experts_by_choice.narrow(1, 0, input.k);
    Rows rows =
        sort_by_score(input, request_rows(input, experts, at::ones_like(experts, at::kBool), 0));
    if (order == SlotOrder::kChoice && input.k > 1) {
      rows = take(rows, at::argsort(rows.choice, /*stable=*/true));
    }
    rows = sort_by_group(input, rows);
    return with_rows(input, rows, rows.token.size(0), {});
  };
}

// Fill-in precedes rectification, because a filled slot reduces the number of missing experts
// (README.md, "Fill-in comes before rectification").
std::vector<Rule> rules(const RouterSettings& settings) {
  std::vector<Rule> list = {request(settings.slot_order), apply_capacity};
  if (settings.fr) {
    list.emplace_back(fill_in);
  }
  if (settings.ir) {
    list.emplace_back(intra_gpu);
  }
  return list;
}

at::Tensor gates(const at::Tensor& logits, const at::Tensor& count,
                 const RouterSettings& settings) {
  return softmax_gates(logits, count, settings.gate_norm == GateNorm::kSelected,
                       settings.straight_through);
}

// Returns the number of first choices of a token that the load-balance loss counts.
int64_t counted_choices(const RouteInput& input, const RouterSettings& settings) {
  return settings.lb_count == LbCount::kFirst ? 1 : input.k;
}

// Returns sequence_balance_loss() of the first k choices; undefined if the input has no sequences.
at::Tensor sequence_balance(const at::Tensor& logits, const RouteInput& input) {
  return input.sequence.defined()
             ? sequence_balance_loss(logits, input, first_choices(input, input.k))
             : at::Tensor();
}

AuxLosses losses(const at::Tensor& logits, const RouteInput& input, const at::Tensor&,
                 const RouterSettings& settings) {
  AuxLosses all;
  add_load_balance_loss(all, logits, input, first_choices(input, counted_choices(input, settings)));
  all.sequence_balance = sequence_balance(logits, input);
  return all;
}

// ---------------------------------------------------------------------------------- fused kernels
// They replace about 170 LibTorch operations of the rules, counters.cpp and route.cpp.

// Returns C_r of each rank, [W] i32 on the device of the logits; INT32_MAX if dropless.
at::Tensor slots_per_rank(const RouteInput& input) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  std::vector<int64_t> slots = input.capacity;
  for (int64_t& count : slots) {
    count = input.is_dropless ? kMax : std::min(count, kMax);
  }
  return to_device(slots, input.logits.device()).to(at::kInt);
}

// Returns rows_max of the plan that the rules would return.
int64_t max_rows(const RouteInput& input, bool has_fill_in, bool has_rectification) {
  const int64_t tokens = input.tokens();
  int64_t rows = max_accepted_rows(input, tokens * input.k);
  if (has_fill_in) {
    rows = max_accepted_rows(input, rows + tokens);
  }
  return rows + (has_rectification ? tokens : 0);
}

kernels::PlanTensors plan_tensors(const RouteInput& input, const Plan& plan) {
  return {
      {plan.token, plan.expert, plan.choice, plan.count, input.source_rank}, input.ranks, input.k};
}

void fused_plan(const RouterSettings& settings, Routing& routing) {
  const RouteInput& input = routing.input;
  const bool has_next = input.k < input.experts(), has_fill_in = settings.fr && has_next;
  const int64_t choices = has_next ? input.k + 1 : input.k;
  const at::Tensor source_rank = input.source_rank.to(at::kInt);
  auto [softmax, choice, local_choice, requested] =
      kernels::call<"moe::router_choices",
                    decltype(kernels::router_choices_on<kernels::router_choices_cpu>)>(
          input.logits, source_rank, input.ranks, choices);
  if (!input.experts_by_choice.is_same(input.experts_by_logit)) {  // with a bias; CPU only
    choice = input.experts_by_choice.narrow(1, 0, choices).to(at::kInt).contiguous();
  }
  const at::Tensor scores = input.scores.contiguous();
  const std::vector<at::Tensor> plan =
      kernels::call<"moe::top_k_plan", decltype(kernels::top_k_plan_on<kernels::top_k_plan_cpu>)>(
          scores, choice, local_choice, source_rank, requested, slots_per_rank(input), input.k,
          has_fill_in, settings.ir, settings.slot_order == SlotOrder::kScore,
          max_rows(input, has_fill_in, settings.ir),
          input.is_dropless ? 0 : input.tokens() * input.k);
  routing.plan = {{plan[0], plan[1], plan[2], plan[3]}, plan[4], plan[5], plan[6], plan[7]};
  at::Tensor counted;
  std::tie(routing.count, counted) =
      kernels::count_plan(input.logits.contiguous(), scores, plan_tensors(input, routing.plan),
                          settings.ir, input.is_dropless);
  routing.counters = make_counters(input, routing.plan, settings, counted);
}

void fused_gate_weights(const at::Tensor& logits, const RouterSettings& settings,
                        Routing& routing) {
  const RouteInput& input = routing.input;
  const int64_t ranks_with_tokens = input.ranks - std::ranges::count(input.rank_tokens, 0);
  const kernels::GateWeights gates = kernels::plan_gate_weights(
      logits, routing.count, input.experts_by_logit, plan_tensors(input, routing.plan),
      {settings.gate_norm == GateNorm::kSelected, settings.straight_through,
       counted_choices(input, settings), std::max<int64_t>(ranks_with_tokens, 1)});
  routing.combine = gates.combine;
  routing.weights = gates.weights;
  if (input.sum_losses) {
    routing.losses = losses(logits, input, routing.count, settings);
    routing.losses.z = input.compute_z_loss ? z_loss(logits, input) : at::Tensor();
    return;
  }
  routing.losses.load_balance = gates.load_balance;
  routing.losses.z = input.compute_z_loss ? gates.z : at::Tensor();
  routing.losses.sequence_balance = sequence_balance(logits, input);
}

}  // namespace

RouterFunctions TopK::functions() {
  return {softmax_scores, rules, gates, losses, fused_plan, fused_gate_weights};
}

}  // namespace moe::route
