#include "core/train/loop/micro_batch.h"

#include <torch/csrc/autograd/autograd.h>

#include "core/train/loop/head_loss.h"

namespace moe::train {

using at::Tensor;

namespace {

// coefficient * loss, or nothing where there is nothing to learn from.
void add_scaled(Tensor& total, const Tensor& loss, double coefficient) {
  if (loss.defined() && loss.requires_grad() && coefficient != 0) {
    total = total.defined() ? total + loss * coefficient : loss * coefficient;
  }
}

// Returns the weighted sum of the auxiliary losses, undefined if none has a gradient.
Tensor weighted_sum(const route::AuxLosses& losses, const MicroBatchScale& scale) {
  const auto& [coefficients, target_share, share] = scale;
  Tensor sum;
  add_scaled(sum, losses.load_balance, coefficients.load_balance * share);
  add_scaled(sum, losses.entropy, coefficients.entropy * share);
  add_scaled(sum, losses.l1, coefficients.l1 * share);
  add_scaled(sum, losses.z, coefficients.z * share);
  add_scaled(sum, losses.sequence_balance, coefficients.sequence_balance * share);
  return sum;
}

// Runs backward from the gradient of `hidden` and, if defined, from `auxiliary`.
void backward_from(const Tensor& hidden, const Tensor& gradient, const Tensor& auxiliary,
                   bool joins) {
  std::vector<Tensor> roots, gradients;
  if ((joins || hidden.size(0) > 0) && hidden.requires_grad()) {
    roots.push_back(hidden);
    gradients.push_back(gradient);
  }
  if (auxiliary.defined()) {
    roots.push_back(auxiliary);
    gradients.push_back(at::ones_like(auxiliary));
  }
  if (!roots.empty()) {
    torch::autograd::backward(roots, gradients);
  }
}

}  // namespace

MicroBatchResult add_micro_batch(const model::Llama& model, const data::Batch& batch,
                                 const model::RoutingOptions& routing, const MicroBatchScale& scale,
                                 bool joins) {
  auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing);
  HeadLoss language;
  model.with_head([&](const Tensor& weight) {
    language =
        head_loss(weight, result.hidden, batch.targets, scale.target_share, model.product_type());
  });
  backward_from(language.hidden, language.gradient, weighted_sum(result.losses, scale), joins);
  model.finish_backward();
  return {language.nll_sum, result.losses, std::move(result.counters)};
}

}  // namespace moe::train
