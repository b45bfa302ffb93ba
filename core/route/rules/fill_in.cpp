// Fill-in Rectification (Rectify-Router, section 4.2): padding is wasted work, so the (k+1)-th
// choice of every token competes, by score, for the slots that the top-k requests left free. So
// top-k + FR has the slots of top-(k+1) at the same capacity. A refused fill-in is no drop: nobody
// was promised it.

#include "core/route/rows.h"

namespace moe::route {

Plan fill_in(const RouteInput& input, const Plan& plan) {
  if (input.k >= input.experts()) {
    return plan;  // there is no (k+1)-th expert
  }
  const Rows accepted = rows_of(plan);
  const at::Tensor next = input.ranked.narrow(1, input.k, 1);
  const Rows asking = requests(input, next, at::ones_like(next, at::kBool), input.k);
  const Rows rows = sort_by_group(input, sort_by_score(input, asking));

  const at::Tensor groups = groups_of(input, rows);
  at::Tensor fits = rows.expert < input.experts();
  if (!input.dropless) {
    const at::Tensor free = group_capacity(input) - group_sizes(input, groups_of(input, accepted));
    fits = at::logical_and(fits, slots_of(input, groups) < free.index_select(0, groups));
  }
  const Rows filled = keep_only(rows, fits, input.experts());
  const Rows all = sort_by_group(input, concatenate(accepted, filled));
  const int64_t most = input.dropless ? all.token.size(0) : accepted_max(input, all.token.size(0));
  return with_rows(input, all, most, plan);
}

}  // namespace moe::route
