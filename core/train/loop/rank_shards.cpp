#include "core/train/loop/rank_shards.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace moe::train {

using at::Tensor;

std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout) {
  std::vector<Slice> slices = whole_slices(parameters);
  for (size_t i = 0; i < slices.size(); ++i) {
    if (parameters[i].is_expert) {
      slices[i].shape[0] *= layout.group();
      slices[i].begin = layout.ep_rank() * parameters[i].tensor.numel();
    } else if (parameters[i].shard.defined()) {
      slices[i].values = parameters[i].shard;
      slices[i].begin = parameters[i].shard_begin;
    }
  }
  return slices;
}

distributed::Comm& holders_of(const model::NamedParameter& parameter, distributed::World& world) {
  return parameter.is_expert ? *world.replicas : world.all;
}

RankShards::RankShards(const std::vector<model::NamedParameter>& trained, distributed::World& world)
    : world_(world) {
  const std::vector<Slice> whole = held_slices(trained, world.layout);
  for (size_t i = 0; i < trained.size(); ++i) {
    const Tensor& parameter = trained[i].tensor;
    distributed::Comm& holders = holders_of(trained[i], world);
    Held held{parameter, &holders, distributed::Part(parameter.numel(), holders), {}};
    held.is_sharded = trained[i].shard.defined();
    const auto [length, begin, end] = held.part;
    if (held.is_sharded && begin < end) {
      held.slice = trained[i].shard;
      slices_.push_back(whole[i]);
    } else if (begin < end) {
      held.slice = parameter.detach().view({-1}).narrow(0, begin, end - begin);
      slices_.push_back({whole[i].name, held.slice, whole[i].shape, whole[i].begin + begin});
    }
    held_.push_back(std::move(held));
  }
}

Tensor RankShards::padded(const Tensor& flat, const Held& held) {
  const int64_t whole = held.part.length * held.holders->size();
  return flat.numel() == whole ? flat : at::constant_pad_nd(flat, {0, whole - flat.numel()});
}

std::vector<bool> RankShards::with_gradient() const {
  std::vector<double> has;
  for (const auto& held : held_) {
    has.push_back(held.parameter.grad().defined() ? 1 : 0);
  }
  std::vector<bool> any;
  for (const double count : distributed::sum_numbers(world_.all, has)) {
    any.push_back(count > 0);
  }
  return any;
}

void RankShards::reduce_gradients() {
  const at::NoGradGuard no_gradients;
  const std::vector<bool> any = with_gradient();
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    if (held.is_sharded) {
      continue;
    }
    Tensor sum;
    if (any[i]) {
      const Tensor& own = held.parameter.grad();
      const Tensor flat =
          own.defined() ? own.contiguous().view({-1}) : at::zeros_like(held.parameter).view({-1});
      if (held.holders->size() == 1) {
        sum = flat;
      } else {
        sum = at::empty({held.part.length}, flat.options());
        held.holders->reduce_scatter(padded(flat, held), sum);
        sum = sum.narrow(0, 0, held.part.end - held.part.begin);
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
  return std::sqrt(distributed::sum_numbers(world_.all, {own * own}).front());
}

void RankShards::gather_weights() {
  const at::NoGradGuard no_gradients;
  for (const auto& held : held_) {
    if (held.holders->size() == 1 || held.is_sharded) {
      continue;
    }
    const Tensor flat = held.parameter.detach().view({-1});
    const Tensor all = padded(flat, held);  // the parameter itself where parts are equally long
    held.holders->all_gather(
        all.narrow(0, held.holders->rank() * held.part.length, held.part.length), all);
    if (!all.is_alias_of(flat)) {
      flat.copy_(all.narrow(0, 0, flat.numel()));
    }
  }
}

}  // namespace moe::train
