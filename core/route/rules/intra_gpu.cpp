// Intra-GPU Rectification (Rectify-Router, section 4.1): a token with fewer than k experts is sent
// to the best expert of its own rank, which costs no communication and asks no capacity. One row
// stands for all m missing experts (their Eq. 3). The expert may be one that dropped the token or
// one it already has (README.md, "The rescuing expert may be any local one").

#include "core/route/rows.h"

namespace moe::route {

Plan intra_gpu(const RouteInput& input, const Plan& plan) {
  const int64_t tokens = input.tokens();
  const int64_t local = input.experts() / input.ranks;
  const Rows before = rows_of(plan);
  const at::Tensor missing = (input.k - rows_per_token(input, before)).clamp_min(0);  // [T]

  // The logits of the experts at home, [T, E / W]; padding tokens look at rank 0 and are left out.
  const at::Tensor home = input.home.masked_fill(input.home == input.ranks, 0).view({tokens, 1, 1});
  const at::Tensor at_home = input.logits.reshape({tokens, input.ranks, local})
                                 .gather(1, home.expand({tokens, 1, local}))
                                 .squeeze(1);
  const at::Tensor best = at_home.argmax(1, /*keepdim=*/true) + home.squeeze(1) * local;  // [T, 1]

  Rows rescued = requests(input, best, (missing > 0).unsqueeze(1), input.k + 1);
  rescued.count = rescued.count * missing;
  const Rows all = sort_by_group(input, concatenate(before, rescued));
  return with_rows(input, all, all.token.size(0), plan);
}

}  // namespace moe::route
