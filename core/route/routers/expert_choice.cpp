#include "core/route/routers/expert_choice.h"

#include "core/route/plan.h"
#include "core/route/route.h"

namespace moe::route {
namespace {

// Every expert takes the C_r tokens of each rank with its highest scores; ties: lower token first.
// Nothing overflows. `choice` of a row is the position of the expert in the order of the token.
Plan take_best_tokens(const RouteInput& input, const Plan&) {
  const at::Tensor experts = input.experts_by_choice;
  const Rows all = request_rows(input, experts, at::ones_like(experts, at::kBool), 0);
  const Rows rows = sort_by_group(input, sort_by_score(input, all));
  if (input.is_dropless) {
    return with_rows(input, rows, rows.token.size(0), {});
  }
  const at::Tensor fits = fit_slots(input, rows, group_capacity(input));
  const Rows taken = sort_by_group(input, keep_only(rows, fits, input.experts()));
  return with_rows(input, taken, max_accepted_rows(input, rows.token.size(0)), {});
}

std::vector<Rule> rules(const RouterSettings&) { return {take_best_tokens}; }

}  // namespace

// The gates are G in section 3.2 of the paper.
RouterFunctions ExpertChoice::functions() { return {softmax_scores, rules, probability_gates}; }

}  // namespace moe::route
