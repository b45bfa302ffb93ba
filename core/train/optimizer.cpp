#include "core/train/optimizer.h"

#include <cmath>

namespace moe::train {

using torch::Tensor;

namespace {

// A norm over 2^20 equal numbers in f32 is 4e-4 off (tried): small terms are added to a large sum.
// Over pieces of this many it is not, and the pieces are added in double.
constexpr int64_t kNormPiece = 1024;

}  // namespace

AdamW::AdamW(const std::vector<model::NamedParameter>& parameters, const AdamWSettings& settings)
    : settings_(settings) {
  decayed_.weight_decay = settings.weight_decay;
  for (const auto& parameter : parameters) {
    const Tensor& weight = parameter.tensor;
    Group& group = weight.dim() == 1 ? kept_ : decayed_;
    group.slots.push_back({parameter.name,
                           weight,
                           at::zeros_like(weight),
                           at::zeros_like(weight),
                           at::zeros({}, at::kFloat)});
  }
}

std::vector<model::NamedParameter> AdamW::state() const {
  std::vector<model::NamedParameter> all;
  for (const Group* group : {&decayed_, &kept_}) {
    for (const auto& slot : group->slots) {
      all.push_back({"exp_avg." + slot.name, slot.mean});
      all.push_back({"exp_avg_sq." + slot.name, slot.square});
      all.push_back({"updates." + slot.name, slot.updates});
    }
  }
  return all;
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
  const at::NoGradGuard no_grad;
  Tensor sum = at::zeros({}, at::kDouble);
  for (const auto& parameter : parameters) {
    if (!parameter.tensor.grad().defined()) {
      continue;
    }
    const Tensor flat = parameter.tensor.grad().reshape({-1});
    const int64_t whole = flat.size(0) / kNormPiece * kNormPiece;
    const Tensor pieces = flat.narrow(0, 0, whole).view({-1, kNormPiece});
    for (const Tensor& part : {pieces, flat.narrow(0, whole, flat.size(0) - whole).view({1, -1})}) {
      sum += at::linalg_vector_norm(part, 2, at::IntArrayRef{1}).to(at::kDouble).square().sum();
    }
  }
  return std::sqrt(sum.item<double>());
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
