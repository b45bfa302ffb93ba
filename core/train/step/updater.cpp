#include "core/train/step/updater.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moe::train {

using at::Tensor;

namespace {

struct WindowStats {
  double mean = 0, deviation = 0;
};

// Computed anew in each step, in the order of the window: there is no drift, and a resumed run
// computes the same values.
WindowStats window_stats(const std::vector<double>& values) {
  // Lower bound of the deviation, for values that differ by rounding only.
  constexpr double kMinRelativeDeviation = 1e-6;
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
  }
  const double mean = sum / count;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return {mean, std::max(std::sqrt(squares / (count - 1)), kMinRelativeDeviation * std::abs(mean))};
}

// Adds `value` to the window, clipped to its threshold. Returns a clause if it exceeds the
// threshold, else "".
std::string add_value(std::vector<double>& values, const char* name, double value, double z) {
  std::string why;
  double entered = value;
  if (static_cast<int64_t>(values.size()) >= kOutlierStart) {
    const WindowStats spread = window_stats(values);
    const double bound = spread.mean + z * spread.deviation;
    if (value > bound) {
      why = fmt::format(
          "the {} {:.4g} lies {:.3g} standard deviations above the mean {:.4g} of "
          "the last {} steps",
          name, value, (value - spread.mean) / spread.deviation, spread.mean, values.size());
      entered = bound;
    }
  }
  values.push_back(entered);
  if (static_cast<int64_t>(values.size()) > kOutlierWindow) {
    values.erase(values.begin());
  }
  return why;
}

std::vector<model::NamedParameter> named(const std::vector<Slice>& slices) {
  std::vector<model::NamedParameter> all;
  for (const auto& slice : slices) {
    all.push_back({slice.name, slice.values});
  }
  return all;
}

}  // namespace

std::optional<std::string> find_outlier(OutlierWindow& window, double loss, double norm, double z) {
  std::string why = add_value(window.losses, "loss", loss, z);
  const std::string why_norm = add_value(window.norms, "gradient norm", norm, z);
  why += (why.empty() || why_norm.empty() ? "" : ", ") + why_norm;
  if (why.empty()) {
    window.in_a_row = 0;
    return std::nullopt;
  }
  if (++window.in_a_row == kMaxConsecutiveOutliers) {
    window = {{loss}, {norm}, 0};
    why += fmt::format(
        "; it is the {}th in a row, so this is taken for the new level: the next {} "
        "steps are not judged",
        kMaxConsecutiveOutliers, kOutlierStart - 1);
  }
  return why;
}

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

distributed::Comm& parameter_holders(const model::NamedParameter& parameter,
                                     distributed::World& world) {
  return parameter.is_expert ? *world.replicas : world.all;
}

RankShards::RankShards(const std::vector<model::NamedParameter>& trained, distributed::World& world)
    : world_(world) {
  const std::vector<Slice> whole = held_slices(trained, world.layout);
  for (size_t i = 0; i < trained.size(); ++i) {
    const Tensor& parameter = trained[i].tensor;
    distributed::Comm& holders = parameter_holders(trained[i], world);
    HeldParameter held{parameter, &holders, distributed::Part(parameter.numel(), holders), {}};
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

Tensor RankShards::padded(const Tensor& flat, const HeldParameter& held) {
  const int64_t whole = held.part.length * held.holders->size();
  return flat.numel() == whole ? flat : at::constant_pad_nd(flat, {0, whole - flat.numel()});
}

std::vector<bool> RankShards::has_gradient() const {
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
  const std::vector<bool> any = has_gradient();
  for (size_t i = 0; i < held_.size(); ++i) {
    HeldParameter& held = held_[i];
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
    const Tensor all = padded(flat, held);  // aliases the parameter if all parts have equal length
    held.holders->all_gather(
        all.narrow(0, held.holders->rank() * held.part.length, held.part.length), all);
    if (!all.is_alias_of(flat)) {
      flat.copy_(all.narrow(0, 0, flat.numel()));
    }
  }
}

Updater::Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
                 uint64_t seed, distributed::World* world)
    : trained_(trained),
      shards_(world == nullptr ? std::nullopt : std::optional<RankShards>({trained, *world})),
      updated_(shards_ ? named(shards_->slices()) : trained),
      optimizer_(shards_ ? shards_->slices() : whole_slices(trained), settings, seed) {}

void Updater::clear_gradients() {
  for (const auto& parameter : trained_) {
    parameter.tensor.mutable_grad() = at::Tensor();
    if (parameter.shard.defined()) {  // including empty ones, which the optimizer does not have
      parameter.shard.mutable_grad() = at::Tensor();
    }
  }
  optimizer_.clear_gradients();
}

double Updater::gradient_norm() {
  RECORD_USER_SCOPE("optimizer");
  if (!shards_) {
    return train::gradient_norm(trained_);
  }
  shards_->reduce_gradients();
  return shards_->norm();
}

void Updater::step(double norm, double clip, double lr) {
  RECORD_USER_SCOPE("optimizer");
  if (!updated_.empty() && updated_.front().tensor.is_cuda()) {
    optimizer_.step(lr, clip_scale(norm, clip));
  } else {
    clip_gradients(updated_, norm, clip);
    optimizer_.step(lr);
  }
  if (shards_) {
    shards_->gather_weights();
  }
}

}  // namespace moe::train
