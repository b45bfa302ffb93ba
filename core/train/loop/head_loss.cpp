#include "core/train/loop/head_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/data/examples.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"

namespace moe::train {

using at::Tensor;

namespace {

// weight's gradient += left^T right, in f32.
void add_to_gradient(const Tensor& weight, const kernels::Operand& left,
                     const kernels::Operand& right) {
  Tensor& gradient = weight.mutable_grad();
  const bool is_new = !gradient.defined();
  if (is_new) {
    gradient = at::empty_like(weight, at::MemoryFormat::Contiguous);
  }
  kernels::operand_product_out(gradient, {left.tensor.t(), left.type}, right, !is_new);
}

// Rows `index` [N] of hidden [T, D]: [N, D]. On the CPU by the operation whose gradient all threads
// put where it belongs; LibTorch's index_add is one thread's.
Tensor rows_at(const Tensor& hidden, const Tensor& index) {
  return hidden.is_cpu() ? kernels::permute(hidden, kernels::permutation_of(index, hidden.size(0)))
                         : hidden.index_select(0, index);
}

}  // namespace

int64_t head_block_rows(int64_t vocabulary, bool on_cuda) {
  constexpr int64_t kCpuLogits = int64_t{1} << 24, kGpuRows = 4096;
  return on_cuda ? kGpuRows : std::max<int64_t>(1, kCpuLogits / vocabulary);
}

HeadLoss head_loss(const Tensor& weight, const Tensor& hidden, const std::vector<int64_t>& targets,
                   double scale, at::ScalarType type, std::optional<int64_t> given_rows) {
  RECORD_USER_SCOPE("head");
  MOE_CHECK(hidden.size(0) == static_cast<int64_t>(targets.size()));
  std::vector<int64_t> rows, wanted;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] != data::kNoLoss) {
      rows.push_back(static_cast<int64_t>(t));
      wanted.push_back(targets[t]);
    }
  }
  HeadLoss loss;
  loss.rows = at::tensor(rows, at::kLong).to(hidden.device());
  loss.hidden = rows_at(hidden, loss.rows);  // [N, D]

  const at::NoGradGuard no_gradients;
  loss.gradient = at::empty_like(loss.hidden, at::MemoryFormat::Contiguous);
  const Tensor target = at::tensor(wanted, at::kLong).to(hidden.device());  // [N]
  const auto of_sums = type == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor head = kernels::weight_operand(weight, type);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t block_rows = given_rows.value_or(head_block_rows(weight.size(0), hidden.is_cuda()));
  // In bf16, rows are rounded once for both of their products, and the gradient of the logits once
  // in place.
  const bool in_bf16 = type == at::kBFloat16;
  const Tensor left = loss.hidden.to(type);
  const Tensor losses = at::empty({count}, hidden.options().dtype(at::kDouble));
  for (int64_t start = 0; start < count; start += block_rows) {
    const int64_t length = std::min(block_rows, count - start);
    const Tensor block = left.narrow(0, start, length);
    Tensor logits = at::empty({length, weight.size(0)}, hidden.options().dtype(of_sums));
    kernels::operand_product_out(logits, {block, type}, {head.t(), type});
    const Tensor gradient = kernels::cross_entropy_(logits, target.narrow(0, start, length), scale,
                                                    losses.narrow(0, start, length), in_bf16);
    const kernels::Operand logits_gradient{gradient, in_bf16 ? type : of_sums};
    Tensor hidden_gradient = loss.gradient.narrow(0, start, length);
    kernels::operand_product_out(hidden_gradient, logits_gradient, {head, type});
    if (weight.requires_grad()) {
      add_to_gradient(weight, logits_gradient, {block, type});
    }
  }
  loss.nll_sum = losses.sum();
  return loss;
}

}  // namespace moe::train
