#include "core/route/routers/top_p.h"

#include "core/route/plan.h"
#include "core/route/route.h"

namespace moe::route {
namespace {

// Returns the rule by which a token takes experts by probability until their sum reaches p (Eq. 4,
// 6): at least one expert, and all of them if the sum does not reach p.
Rule take_mass(double p) {
  return [p](const RouteInput& input, const Plan&) {
    // In f64: an f32 sum would reach p = 1 before the last experts.
    const at::Tensor mass =
        at::softmax(input.logits.to(at::kDouble), 1).gather(1, input.experts_by_choice).cumsum(1);
    const at::Tensor experts = input.experts_by_choice.narrow(1, 0, input.k);
    at::Tensor keep = at::ones_like(experts, at::kBool);
    keep.narrow(1, 1, input.k - 1).copy_(mass.narrow(1, 0, input.k - 1) < p);
    const Rows rows = sort_by_group(input, request_rows(input, experts, keep, 0));
    return with_rows(input, rows, rows.token.size(0), {});
  };
}

std::vector<Rule> rules(const RouterSettings& settings) { return {take_mass(settings.p)}; }

AuxLosses losses(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                 const RouterSettings&) {
  const at::Tensor chosen = (count > 0).to(input.logits.scalar_type());
  AuxLosses all;
  add_load_balance_loss(all, logits, input, chosen);
  all.entropy = entropy_loss(logits, input);
  if (input.sequence.defined()) {
    all.sequence_balance = sequence_balance_loss(logits, input, chosen);
  }
  return all;
}

}  // namespace

// Gates: Eq. 5 of the paper.
RouterFunctions TopP::functions() { return {softmax_scores, rules, probability_gates, losses}; }

}  // namespace moe::route
