// ReLU routing (P3): an expert runs for a token iff its logit is positive. No capacity; a token may
// get no expert at all.

#include "core/route/rows.h"

namespace moe::route {

Plan positive(const RouteInput& input, const Plan&) {
  const at::Tensor keep = input.logits.gather(1, input.ranked) > 0;
  const Rows rows = sort_by_group(input, requests(input, input.ranked, keep, 0));
  return with_rows(input, rows, rows.token.size(0), {});
}

}  // namespace moe::route
