// Top-p (P2 Eq. 4, 6): a token takes experts by probability until their sum reaches p. The expert
// that crosses p is included, so there is always one; never reached (p = 1, rounding) means all
// experts. No capacity, nothing is dropped (D12).

#include "core/route/rows.h"

namespace moe::route {

Rule top_p(double p) {
  return [p](const RouteInput& input, const Plan&) {
    // In f64: with p = 1 an f32 sum would reach 1 before the last experts.
    const at::Tensor mass =
        at::softmax(input.logits.to(at::kDouble), 1).gather(1, input.ranked).cumsum(1);
    const at::Tensor wanted = input.ranked.narrow(1, 0, input.k);
    at::Tensor keep = at::ones_like(wanted, at::kBool);
    keep.narrow(1, 1, input.k - 1).copy_(mass.narrow(1, 0, input.k - 1) < p);
    const Rows rows = sort_by_group(input, requests(input, wanted, keep, 0));
    return with_rows(input, rows, rows.token.size(0), {});
  };
}

}  // namespace moe::route
