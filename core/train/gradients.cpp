#include "core/train/gradients.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/train/head_loss.h"

namespace moe::train {

using torch::Tensor;

namespace {

// coefficient * loss, or nothing where there is nothing to learn from.
void add_scaled(Tensor& total, const Tensor& loss, double coefficient) {
  if (loss.defined() && loss.requires_grad() && coefficient != 0) {
    total = total.defined() ? total + loss * coefficient : loss * coefficient;
  }
}

// Means of the auxiliary losses over micro-batches.
class AuxMeans {
 public:
  void add(const route::AuxLosses& losses, double weight) {
    add_one(load_balance_, losses.load_balance, weight);
    add_one(entropy_, losses.entropy, weight);
    add_one(l1_, losses.l1, weight);
  }
  void report(StepLosses& step) const {
    step.load_balance = value(load_balance_);
    step.entropy = value(entropy_);
    step.l1 = value(l1_);
  }

 private:
  static void add_one(Tensor& mean, const Tensor& loss, double weight) {
    if (loss.defined()) {
      const Tensor part = loss.detach().to(at::kDouble) * weight;
      mean = mean.defined() ? mean + part : part;
    }
  }
  static std::optional<double> value(const Tensor& mean) {
    return mean.defined() ? std::optional<double>(mean.item<double>()) : std::nullopt;
  }
  Tensor load_balance_, entropy_, l1_;
};

// Sums the counters over micro-batches. `all` holds them micro-batch after micro-batch, layers
// inside.
void add_counters(const std::vector<route::Counters>& all, size_t micro_batches, StepLosses& step) {
  const auto values = route::read_counters(all);
  const size_t layers = values.size() / micro_batches;
  step.layers.resize(layers);
  for (size_t i = 0; i < values.size(); ++i) {
    step.layers[i % layers].add(values[i]);
    step.sparsity += values[i].sparsity() / static_cast<double>(values.size());
  }
}

void backward(const HeadLoss& language, const Tensor& auxiliary) {
  std::vector<Tensor> roots, gradients;
  if (language.hidden.size(0) > 0 && language.hidden.requires_grad()) {
    roots.push_back(language.hidden);
    gradients.push_back(language.gradient);
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

StepLosses add_gradients(const model::Llama& model,
                         const std::vector<data::Batch>& micro_batches,
                         const model::RoutingOptions& routing,
                         const AuxCoefficients& coefficients) {
  StepLosses step;
  for (const auto& batch : micro_batches) {
    step.tokens += static_cast<int64_t>(batch.ids.size());
    step.target_tokens += batch.target_count;
  }
  const double target_share = 1.0 / static_cast<double>(std::max<int64_t>(1, step.target_tokens));
  const double batch_share = 1.0 / static_cast<double>(micro_batches.size());
  AuxMeans means;
  std::vector<route::Counters> counters;
  for (const auto& batch : micro_batches) {
    const auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing);
    const HeadLoss language = head_loss(
        model.head_weight(), result.hidden, batch.targets, target_share, model.product_type());
    Tensor auxiliary;
    add_scaled(auxiliary, result.losses.load_balance, coefficients.load_balance * batch_share);
    add_scaled(auxiliary, result.losses.entropy, coefficients.entropy * batch_share);
    add_scaled(auxiliary, result.losses.l1, coefficients.l1 * batch_share);
    backward(language, auxiliary);
    step.loss += language.nll_sum * target_share;
    means.add(result.losses, batch_share);
    counters.insert(counters.end(), result.counters.begin(), result.counters.end());
  }
  means.report(step);
  if (!counters.empty()) {
    add_counters(counters, micro_batches.size(), step);
  }
  return step;
}

}  // namespace moe::train
