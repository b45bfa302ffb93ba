// Expert capacity (Rectify-Router, section 3): of the requests of one (source rank, expert), in
// slot order, the first C_r stay; the others are dropped into the overflow. Capacity is counted per
// source rank, so that routing needs no communication.

#include "core/route/rows.h"

namespace moe::route {

Plan within_capacity(const RouteInput& input, const Plan& plan) {
  const Rows rows = rows_of(plan);
  if (input.dropless) {
    return plan;
  }
  const at::Tensor groups = groups_of(input, rows);
  const at::Tensor fits = slots_of(input, groups) < group_capacity(input).index_select(0, groups);
  const at::Tensor refused = at::logical_and(fits.logical_not(), rows.expert < input.experts());

  const Rows dropped = sort_by_group(input, keep_only(rows, refused, input.experts()));
  Plan mended = plan;
  mended.overflow_token = dropped.token;
  mended.overflow_expert = dropped.expert;
  mended.overflow_choice = dropped.choice;
  const Rows accepted = sort_by_group(input, keep_only(rows, fits, input.experts()));
  return with_rows(input, accepted, accepted_max(input, rows.token.size(0)), mended);
}

}  // namespace moe::route
