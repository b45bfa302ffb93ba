#include "core/route/routers.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/route/gates.h"
#include "core/route/kernel_plan.h"
#include "kernels/ops/router.h"

namespace moe::route {
namespace {

at::Tensor softmax_scores(const at::Tensor& logits) { return at::softmax(logits, 1); }
at::Tensor relu_scores(const at::Tensor& logits) { return at::relu(logits); }

std::vector<Rule> top_k_rules(const RouterSettings& settings) {
  return {top_k(settings.slot_order), within_capacity};
}
std::vector<Rule> top_p_rules(const RouterSettings& settings) { return {top_p(settings.p)}; }
std::vector<Rule> relu_rules(const RouterSettings&) { return {positive}; }

at::Tensor top_k_gates(const at::Tensor& logits, const at::Tensor& count,
                       const RouterSettings& settings) {
  const bool normalise = settings.gate_norm == GateNorm::kSelected;
  return softmax_gates(logits, count, normalise, settings.straight_through);
}
at::Tensor probability_gates(const at::Tensor& logits, const at::Tensor& count,
                             const RouterSettings&) {
  return softmax_gates(logits, count, /*normalise=*/false, /*straight_through=*/true);
}
at::Tensor positive_gates(const at::Tensor& logits, const at::Tensor& count,
                          const RouterSettings&) {
  return relu_gates(logits, count);
}

AuxLosses balance(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                  const RouterSettings& settings) {
  return {load_balance_loss(logits, input, count, settings), {}, {}};
}
AuxLosses balance_and_entropy(const at::Tensor& logits, const RouteInput& input,
                              const at::Tensor& count, const RouterSettings& settings) {
  return {load_balance_loss(logits, input, count, settings), entropy_loss(logits, input), {}};
}
AuxLosses sparsity(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                   const RouterSettings& settings) {
  return {{}, {}, l1_loss(logits, input, count, settings)};
}

const RouterFamily& family_of(const RouterSettings& settings) {
  const auto& families = router_families();
  const auto entry = std::find_if(families.begin(), families.end(),
                                  [&](const auto& each) { return each.family == settings.family; });
  MOE_CHECK(entry != families.end(), "router '{}' is not in the table", to_string(settings));
  return *entry;
}

Plan plan_by_rules(const RouteInput& input, const RouterFamily& family,
                   const RouterSettings& settings) {
  Plan plan;
  for (const auto& rule : family.rules(settings)) {
    plan = rule(input, plan);
  }
  for (const auto& modifier : router_modifiers()) {
    if (settings.*modifier.is_on) {
      plan = modifier.rule(input, plan);
    }
  }
  return plan;
}

// What has a gradient: all that `routing` holds besides is decided.
void weigh(Routing& routing, const at::Tensor& logits, const RouterFamily& family,
           const RouterSettings& settings) {
  routing.combine = family.gates(logits, routing.count, settings);
  routing.weights = row_weights(routing.combine, routing.count, routing.input, routing.plan);
  routing.losses = family.losses(logits, routing.input, routing.count, settings);
}

}  // namespace

const std::vector<RouterFamily>& router_families() {
  static const std::vector<RouterFamily> families = {
      {Family::kTopK,
       {"top1", "top2", "top3:order=score", "top2:cf=inf,gate=none"},
       softmax_scores,
       top_k_rules,
       top_k_gates,
       balance},
      {Family::kTopP,
       {"topp:0.4", "topp:0.7,max=2"},
       softmax_scores,
       top_p_rules,
       probability_gates,
       balance_and_entropy},
      {Family::kRelu, {"relu:k=1"}, relu_scores, relu_rules, positive_gates, sparsity},
  };
  return families;
}

const std::vector<RouterModifier>& router_modifiers() {
  // Fill-in first: a token it rescues needs no expert at home (D8).
  static const std::vector<RouterModifier> modifiers = {
      {"+fr", &RouterSettings::fr, fill_in},
      {"+ir", &RouterSettings::ir, intra_gpu},
  };
  return modifiers;
}

Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group) {
  return route(logits, family_of(settings), settings, group);
}

Routing route(const at::Tensor& logits, const RouterFamily& family, const RouterSettings& settings,
              const RoutingGroup& group) {
  Routing routing;
  {
    const at::NoGradGuard no_grad;
    routing.input = make_input(logits, family.scores(logits), settings, group);
    const bool by_kernels = logits.is_cuda() && logits.scalar_type() == at::kFloat &&
                            family.rules == top_k_rules &&
                            logits.size(1) <= kernels::kMaxRouterExperts;
    routing.plan = by_kernels ? plan_by_kernels(routing.input, settings)
                              : plan_by_rules(routing.input, family, settings);
    routing.count = multiplicities(routing.input, routing.plan);
    routing.counters = count_plan(routing.input, routing.plan, settings);
  }
  weigh(routing, logits, family, settings);
  return routing;
}

Routing route_again(const at::Tensor& logits, const Routing& decided,
                    const RouterSettings& settings) {
  Routing routing = decided;
  weigh(routing, logits, family_of(settings), settings);
  return routing;
}

}  // namespace moe::route
