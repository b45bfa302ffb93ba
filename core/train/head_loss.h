#pragma once
// Language-model loss and its gradient without the logits of the whole batch: the head sees only
// positions that have a target, in blocks of rows, and each block goes back as soon as it went
// forward. What stays is the gradient of the hidden rows; the head's own gradient lands in its
// weight. N target positions, D model width, V vocabulary.

#include <torch/types.h>

#include <functional>
#include <vector>

namespace moe::train {

inline constexpr int64_t kLogitsPerBlock = int64_t{1} << 24;  // 64 MiB of f32

struct HeadLoss {
  double nll_sum = 0;    // over the N targets
  torch::Tensor hidden;  // [N, D] the rows with a target, part of the graph of the model
  torch::Tensor
      gradient;  // [N, D] of scale * nll_sum with respect to `hidden`; hand it to its backward
};

// hidden [T, D]; targets [T] with data::kNoLoss where none; head maps [n, D] to logits [n, V]. Adds
// the gradient of scale * nll_sum to the head's weights.
HeadLoss head_loss(const std::function<torch::Tensor(const torch::Tensor&)>& head,
                   const torch::Tensor& hidden,
                   const std::vector<int64_t>& targets,
                   int64_t vocab_size,
                   double scale,
                   int64_t logits_per_block = kLogitsPerBlock);

}  // namespace moe::train
