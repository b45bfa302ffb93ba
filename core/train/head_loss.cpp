#include "core/train/head_loss.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/data/examples.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "kernels/softmax_nll.h"

namespace moe::train {

using torch::Tensor;

namespace {

// weight's gradient += left^T right, in f32.
void add_to_gradient(const Tensor& weight, const Tensor& left, const Tensor& right) {
  Tensor& gradient = weight.mutable_grad();
  if (!gradient.defined()) {
    gradient = kernels::product_to_f32(left.t(), right);
  } else if (left.scalar_type() == at::kFloat) {
    kernels::product_out(gradient, left.t(), right, /*accumulate=*/true);
  } else {
    gradient.add_(kernels::product_to_f32(left.t(), right));
  }
}

}  // namespace

HeadLoss head_loss(const Tensor& weight,
                   const Tensor& hidden,
                   const std::vector<int64_t>& targets,
                   double scale,
                   torch::ScalarType type,
                   int64_t logits_per_block) {
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
  loss.hidden = hidden.index_select(0, at::tensor(rows, at::kLong).to(hidden.device()));  // [N, D]

  const at::NoGradGuard no_gradients;
  loss.gradient = at::empty_like(loss.hidden, at::MemoryFormat::Contiguous);
  const Tensor target = at::tensor(wanted, at::kLong).to(hidden.device());  // [N]
  const Tensor in = kernels::operand(loss.hidden, type), head = kernels::operand(weight, type);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t block_rows = std::max<int64_t>(1, logits_per_block / weight.size(0));
  for (int64_t start = 0; start < count; start += block_rows) {
    const int64_t length = std::min(block_rows, count - start);
    const Tensor block = in.narrow(0, start, length);
    Tensor logits = kernels::product_to_f32(block, head.t());  // [length, V]
    loss.nll_sum += kernels::softmax_nll_(logits, target.narrow(0, start, length), scale);
    const Tensor gradient = logits.is_cuda() ? logits.to(type) : logits;  // CPUs multiply in f32
    Tensor hidden_gradient = loss.gradient.narrow(0, start, length);
    if (gradient.scalar_type() == hidden_gradient.scalar_type()) {
      kernels::product_out(hidden_gradient, gradient, head);
    } else {
      hidden_gradient.copy_(kernels::product(gradient, head));
    }
    if (weight.requires_grad()) {
      add_to_gradient(weight, gradient, block);
    }
  }
  return loss;
}

}  // namespace moe::train
