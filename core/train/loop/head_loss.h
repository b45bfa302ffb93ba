#pragma once
// Language-model loss and its gradient without the logits of the whole batch: the head sees only
// positions that have a target, in blocks of rows, and the logits of a block become their own
// gradient in place. What stays is the gradient of the hidden rows; the head's own gradient lands
// in its weight. N target positions, D model width, V vocabulary.

#include <ATen/ATen.h>

#include <optional>
#include <vector>

namespace moe::train {

// Rows of a block, of a head of V words: on the CPU 64 MiB of logits, some of which the caches
// keep. On a GPU as many as make adding to the head's gradient, 8 V D bytes a block, small beside
// the products; the logits of a block then take 16 V KiB.
int64_t head_block_rows(int64_t vocabulary, bool on_cuda);

struct HeadLoss {
  at::Tensor rows;  // [N] i64, the positions with a target
  at::Tensor
      nll_sum;  // [] f64, over the N targets; a GPU's stays there, and nothing has waited for it
  at::Tensor hidden;  // [N, D] the rows with a target, part of the graph of the model
  at::Tensor
      gradient;  // [N, D] of scale * nll_sum with respect to `hidden`; hand it to its backward
};

// weight [V, D] f32, the head's; hidden [T, D] f32; targets [T] with data::kNoLoss where none;
// products in `type` (kernels/ops/linear.h), logits and sums in f32; in bf16 the gradient of the
// logits is rounded once, for both of its products. Adds the gradient of scale * nll_sum to the
// weight's, if it wants one. `block_rows`: other than head_block_rows().
HeadLoss head_loss(const at::Tensor& weight, const at::Tensor& hidden,
                   const std::vector<int64_t>& targets, double scale,
                   at::ScalarType type = at::kFloat, std::optional<int64_t> block_rows = {});

}  // namespace moe::train
