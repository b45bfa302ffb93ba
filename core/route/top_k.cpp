// Top-k (P1 Eq. 1): every token requests its k experts of the highest logit. Rows come in the order
// in which an expert would accept them: choice by choice (D5), within a choice by score, then by
// token; or all choices of a (rank, expert) by score (order=score).

#include "core/route/rows.h"

namespace moe::route {

Rule top_k(SlotOrder order) {
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

}  // namespace moe::route
