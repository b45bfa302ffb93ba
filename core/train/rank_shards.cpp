#include "core/train/rank_shards.h"

#include <algorithm>
#include <cmath>

namespace moe::train {

using torch::Tensor;

bool is_expert(const model::NamedParameter& parameter) { return parameter.tensor.dim() == 3; }

std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const dist::Layout& layout) {
  std::vector<Slice> slices = whole_slices(parameters);
  for (size_t i = 0; i < slices.size(); ++i) {
    if (is_expert(parameters[i])) {
      slices[i].shape[0] *= layout.group();
      slices[i].begin = layout.place() * parameters[i].tensor.numel();
    }
  }
  return slices;
}

RankShards::RankShards(const std::vector<model::NamedParameter>& trained, dist::World& world)
    : world_(world) {
  const std::vector<Slice> whole = held_slices(trained, world.layout);
  for (size_t i = 0; i < trained.size(); ++i) {
    const Tensor& parameter = trained[i].tensor;
    dist::Comm* holders = is_expert(trained[i]) ? world.replicas.get() : &world.all;
    const int64_t count = parameter.numel();
    const int64_t length = (count + holders->size() - 1) / holders->size();
    const int64_t begin = std::min(count, holders->rank() * length);
    const int64_t end = std::min(count, begin + length);
    Held held{parameter, holders, length, begin, end, {}};
    if (begin < end) {
      held.slice = parameter.detach().view({-1}).narrow(0, begin, end - begin);
      slices_.push_back({whole[i].name, held.slice, whole[i].shape, whole[i].begin + begin});
    }
    held_.push_back(std::move(held));
  }
}

Tensor RankShards::padded(const Tensor& flat, const Held& held) {
  const int64_t whole = held.length * held.holders->size();
  return flat.numel() == whole ? flat : at::constant_pad_nd(flat, {0, whole - flat.numel()});
}

std::vector<bool> RankShards::with_gradient() const {
  std::vector<double> has;
  for (const auto& held : held_) {
    has.push_back(held.parameter.grad().defined() ? 1 : 0);
  }
  std::vector<bool> any;
  for (const double count : dist::sum_numbers(world_.all, has)) {
    any.push_back(count > 0);
  }
  return any;
}

void RankShards::reduce_gradients() {
  const at::NoGradGuard no_gradients;
  const std::vector<bool> any = with_gradient();
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    Tensor sum;
    if (any[i]) {
      const Tensor& own = held.parameter.grad();
      const Tensor flat =
          own.defined() ? own.contiguous().view({-1}) : at::zeros_like(held.parameter).view({-1});
      if (held.holders->size() == 1) {
        sum = flat;
      } else {
        sum = at::empty({held.length}, flat.options());
        held.holders->reduce_scatter(padded(flat, held), sum);
        sum = sum.narrow(0, 0, held.end - held.begin);
      }
    }
    held.parameter.mutable_grad() = Tensor();
    if (held.slice.defined()) {
      held.slice.mutable_grad() = sum;
    }
  }
}

double RankShards::norm() const {
  std::vector<model::NamedParameter> parts;
  for (const auto& slice : slices_) {
    parts.push_back({slice.name, slice.values});
  }
  const double own = gradient_norm(parts);
  return std::sqrt(dist::sum_numbers(world_.all, {own * own}).front());
}

void RankShards::gather_weights() {
  const at::NoGradGuard no_gradients;
  for (const auto& held : held_) {
    if (held.holders->size() == 1) {
      continue;
    }
    const Tensor flat = held.parameter.detach().view({-1});
    Tensor part = flat.narrow(0, held.begin, held.end - held.begin).clone();
    if (part.numel() < held.length) {
      part = at::constant_pad_nd(part, {0, held.length - part.numel()});
    }
    const int64_t whole = held.length * held.holders->size();
    const Tensor all = whole == flat.numel() ? flat : at::empty({whole}, flat.options());
    held.holders->all_gather(part, all);
    if (whole != flat.numel()) {
      flat.copy_(all.narrow(0, 0, flat.numel()));
    }
  }
}

}  // namespace moe::train
