#pragma once
// Language-model loss and its gradient without the logits of the whole batch: the head sees only
// positions that have a target, in blocks of rows, and the logits of a block become their own
// gradient in place. What stays is the gradient of the hidden rows; the head's own gradient lands
// in its weight. N target positions, D model width, V vocabulary.

#include <ATen/ATen.h>

#include <vector>

namespace moe::train {

inline constexpr int64_t kLogitsPerBlock = int64_t{1} << 24;  // 64 MiB of f32

struct HeadLoss {
  double nll_sum = 0;  // over the N targets
  at::Tensor hidden;   // [N, D] the rows with a target, part of the graph of the model
  at::Tensor
      gradient;  // [N, D] of scale * nll_sum with respect to `hidden`; hand it to its backward
};

// weight [V, D] f32, the head's; hidden [T, D] f32; targets [T] with data::kNoLoss where none;
// products in `type` (kernels/ops/linear.h), logits and sums in f32. Adds the gradient of
// scale * nll_sum to the weight's, if it wants one.
HeadLoss head_loss(const at::Tensor& weight, const at::Tensor& hidden,
                   const std::vector<int64_t>& targets, double scale,
                   at::ScalarType type = at::kFloat, int64_t logits_per_block = kLogitsPerBlock);

}  // namespace moe::train
