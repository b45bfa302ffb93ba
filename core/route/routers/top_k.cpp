#include "core/route/routers/top_k.h"

#include "core/route/gates.h"
#include "core/route/kernel_plan.h"
#include "core/route/route.h"
#include "core/route/rows.h"

namespace moe::route {
namespace {

// Every token requests its k experts of the highest logit (Rectify-Router, Eq. 1). Rows come in the
// order in which an expert would accept them: choice by choice, within a choice by score, then by
// token (README.md, "Slots are given choice by choice"); or all choices of a (rank, expert) by
// score (order=score).
Rule request(SlotOrder order) {
  return [order](const RouteInput& input, const Plan&) {
    const at::Tensor wanted = input.ranked.narrow(1, 0, input.k);
    const Rows asking = requests(input, wanted, at::ones_like(wanted, at::kBool), 0);
    Rows rows = sort_by_score(input, asking);
    if (order == SlotOrder::kChoice && input.k > 1) {
      rows = take(rows, std::get<1>(at::sort(rows.choice, /*stable=*/true, 0, false)));
    }
    rows = sort_by_group(input, rows);
    return with_rows(input, rows, rows.token.size(0), {});
  };
}

// Fill-in comes before rectification: a token that it rescues needs no expert at home.
std::vector<Rule> rules(const RouterSettings& settings) {
  std::vector<Rule> list = {request(settings.slot_order), within_capacity};
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
  const bool normalise = settings.gate_norm == GateNorm::kSelected;
  return softmax_gates(logits, count, normalise, settings.straight_through);
}

// First choices of a token that the load-balance loss counts.
int64_t counted_choices(const RouteInput& input, const RouterSettings& settings) {
  return settings.lb_count == LbCount::kFirst ? 1 : input.k;
}

// Undefined where nobody asks.
at::Tensor sequence_balance(const at::Tensor& logits, const RouteInput& input) {
  return input.sequence.defined()
             ? sequence_balance_loss(logits, input, first_choices(input, input.k))
             : at::Tensor();
}

AuxLosses losses(const at::Tensor& logits, const RouteInput& input, const at::Tensor&,
                 const RouterSettings& settings) {
  AuxLosses all;
  all.load_balance =
      load_balance_loss(logits, input, first_choices(input, counted_choices(input, settings)));
  all.sequence_balance = sequence_balance(logits, input);
  return all;
}

void kernel_weights(const at::Tensor& logits, const RouterSettings& settings, Routing& routing) {
  const RouteInput& input = routing.input;
  const kernels::PlanWeights found =
      weigh_by_kernels(logits, routing.count, input, routing.plan,
                       {settings.gate_norm == GateNorm::kSelected, settings.straight_through,
                        counted_choices(input, settings)});
  routing.combine = found.combine;
  routing.weights = found.weights;
  routing.losses.load_balance = found.load_balance;
  routing.losses.z = found.z;
  routing.losses.sequence_balance = sequence_balance(logits, input);
}

}  // namespace

RouterFunctions TopK::functions() {
  return {softmax_scores, rules, gates, losses, plan_by_kernels, kernel_weights};
}

}  // namespace moe::route
