#include "core/train/optimizer.h"

#include <cmath>

namespace moe::train {

using torch::Tensor;

AdamW::AdamW(const std::vector<model::NamedParameter>& parameters, const AdamWSettings& settings)
    : settings_(settings) {
  decayed_.weight_decay = settings.weight_decay;
  for (const auto& parameter : parameters) {
    const Tensor& weight = parameter.tensor;
    Group& group = weight.dim() == 1 ? kept_ : decayed_;
    group.slots.push_back(
        {weight, at::zeros_like(weight), at::zeros_like(weight), at::zeros({}, at::kFloat)});
  }
}

void AdamW::step(double lr) {
  step_group(decayed_, lr);
  step_group(kept_, lr);
}

void AdamW::clear_gradients() {
  for (const Group* group : {&decayed_, &kept_}) {
    for (const auto& slot : group->slots) {
      slot.weight.mutable_grad() = Tensor();
    }
  }
}

void AdamW::step_group(const Group& group, double lr) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> weights, gradients, means, squares, updates;
  for (const auto& slot : group.slots) {
    if (!slot.weight.grad().defined()) {
      continue;
    }
    weights.push_back(slot.weight);
    gradients.push_back(slot.weight.grad().contiguous());  // the fused kernel walks plain memory
    means.push_back(slot.mean);
    squares.push_back(slot.square);
    updates.push_back(slot.updates);
  }
  if (weights.empty()) {
    return;
  }
  at::_foreach_add_(updates, 1);
  at::_fused_adamw_(weights,
                    gradients,
                    means,
                    squares,
                    /*max_exp_avg_sqs=*/{},
                    updates,
                    lr,
                    settings_.beta1,
                    settings_.beta2,
                    group.weight_decay,
                    settings_.eps,
                    /*amsgrad=*/false,
                    /*maximize=*/false);
}

double gradient_norm(const std::vector<model::NamedParameter>& parameters) {
  // f32 sums lose digits over 10^8 elements; over pieces of 2^20 they do not.
  constexpr int64_t kPiece = int64_t{1} << 20;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> norms;
  for (const auto& parameter : parameters) {
    if (!parameter.tensor.grad().defined()) {
      continue;
    }
    for (const auto& piece : parameter.tensor.grad().reshape({-1}).split(kPiece)) {
      norms.push_back(at::linalg_vector_norm(piece));
    }
  }
  return norms.empty() ? 0.0
                       : at::linalg_vector_norm(at::stack(norms).to(at::kDouble)).item<double>();
}

void clip_gradients(const std::vector<model::NamedParameter>& parameters,
                    double norm,
                    double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  if (max_norm <= 0 || scale >= 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (parameter.tensor.grad().defined()) {
      parameter.tensor.mutable_grad().mul_(scale);
    }
  }
}

}  // namespace moe::train
