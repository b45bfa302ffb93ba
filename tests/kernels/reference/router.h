#pragma once
// A router's scores and choices by LibTorch's softmax in double and its stable sort.

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/ops/router.h"

namespace moe::test {

inline void router_choices_reference(const kernels::RouterChoicesArgs& args) {
  const auto& [tokens, experts, ranks, choices] = args.shape;
  const at::Tensor logits =
      at::from_blob(const_cast<float*>(args.logits), {tokens, experts}, at::kFloat);
  at::from_blob(args.scores, {tokens, experts}, at::kFloat)
      .copy_(at::softmax(logits.to(at::kDouble), 1));
  const at::Tensor order = std::get<1>(at::sort(logits, /*stable=*/true, 1, /*descending=*/true));
  std::fill_n(args.requested, choices * experts * ranks, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto* ranked = order.const_data_ptr<int64_t>() + t * experts;
    const int32_t source_rank = args.source_rank[t];
    for (int64_t c = 0; c < choices; ++c) {
      args.choice[t * choices + c] = static_cast<int32_t>(ranked[c]);
      if (source_rank < ranks) {
        ++args.requested[(c * experts + ranked[c]) * ranks + source_rank];
      }
    }
    const auto* best =
        std::find_if(ranked, ranked + experts,
                     [&, local = experts / ranks](int64_t e) { return e / local == source_rank; });
    args.local_choice[t] = source_rank < ranks ? static_cast<int32_t>(*best) : -1;
  }
}

}  // namespace moe::test
