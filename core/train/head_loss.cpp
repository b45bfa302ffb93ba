#include "core/train/head_loss.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/data/examples.h"

namespace moe::train {

using torch::Tensor;

HeadLoss head_loss(const std::function<Tensor(const Tensor&)>& head,
                   const Tensor& hidden,
                   const std::vector<int64_t>& targets,
                   int64_t vocab_size,
                   double scale,
                   int64_t logits_per_block) {
  MOE_CHECK(hidden.size(0) == static_cast<int64_t>(targets.size()));
  std::vector<int64_t> rows, wanted;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] != data::kNoLoss) {
      rows.push_back(static_cast<int64_t>(t));
      wanted.push_back(targets[t]);
    }
  }
  HeadLoss loss;
  loss.hidden = hidden.index_select(0, at::tensor(rows, at::kLong));  // [N, D]
  loss.gradient = at::empty_like(loss.hidden, at::MemoryFormat::Contiguous).detach();
  const Tensor target = at::tensor(wanted, at::kLong);  // [N]
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t block_rows = std::max<int64_t>(1, logits_per_block / vocab_size);
  for (int64_t start = 0; start < count; start += block_rows) {
    const int64_t length = std::min(block_rows, count - start);
    const Tensor block = loss.hidden.detach().narrow(0, start, length).requires_grad_(true);
    const Tensor nll = at::cross_entropy_loss(
        head(block), target.narrow(0, start, length), {}, at::Reduction::None);
    nll.backward(at::full_like(nll, scale));  // [length]
    loss.nll_sum += nll.detach().sum(at::kDouble).item<double>();
    loss.gradient.narrow(0, start, length).copy_(block.grad());
  }
  return loss;
}

}  // namespace moe::train
