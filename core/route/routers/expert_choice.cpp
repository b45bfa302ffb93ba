#include "core/route/routers/expert_choice.h"

#include "core/route/gates.h"
#include "core/route/route.h"
#include "core/route/rows.h"

namespace moe::route {
namespace {

// Every expert takes, of the tokens of each rank, the C_r that score highest for it; equal scores:
// the lower token. What it does not take nobody asked for, so nothing overflows. The choice of a
// row is the place of the expert in its token's own ranking.
Plan take_best(const RouteInput& input, const Plan&) {
  const Rows all = requests(input, input.ranked, at::ones_like(input.ranked, at::kBool), 0);
  const Rows rows = sort_by_group(input, sort_by_score(input, all));
  if (input.dropless) {
    return with_rows(input, rows, rows.token.size(0), {});
  }
  const at::Tensor groups = groups_of(input, rows);
  const at::Tensor is_taken =
      slots_of(input, groups) < group_capacity(input).index_select(0, groups);
  const Rows taken = sort_by_group(input, keep_only(rows, is_taken, input.experts()));
  return with_rows(input, taken, accepted_max(input, rows.token.size(0)), {});
}

std::vector<Rule> rules(const RouterSettings&) { return {take_best}; }

// The scores as they are: G of the paper's section 3.2.
at::Tensor gates(const at::Tensor& logits, const at::Tensor& count, const RouterSettings&) {
  return softmax_gates(logits, count, /*normalise=*/false, /*straight_through=*/true);
}

AuxLosses losses(const at::Tensor&, const RouteInput&, const at::Tensor&, const RouterSettings&) {
  return {};
}

}  // namespace

RouterFunctions ExpertChoice::functions() { return {softmax_scores, rules, gates, losses}; }

}  // namespace moe::route
