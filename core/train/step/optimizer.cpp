#include "core/train/step/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/config/folder_tensors.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/device.h"

namespace moe::train {
namespace {

using at::Tensor;

// An f32 norm over 2^20 equal numbers has an error of 4e-4 (measured); over pieces of this size it
// has none. The pieces are added in f64.
constexpr int64_t kNormPiece = 1024;

bool is_decayed(const Slice& slice, const AdamWSettings& settings) {
  const bool is_embedding = slice.name == "model.embed_tokens" || slice.name == "lm_head";
  return slice.shape.size() > 1 && (settings.decay_embeddings || !is_embedding);
}

// Returns the sum of f64 numbers [n] in an order that does not depend on the number of threads. The
// order of LibTorch's sum() on the CPU depends on it if n is large.
Tensor sum_in_order(const Tensor& numbers) {
  const int64_t whole = numbers.size(0) / kNormPiece * kNormPiece;
  if (whole == 0) {
    return numbers.sum();
  }
  const Tensor sum = numbers.narrow(0, 0, whole).view({-1, kNormPiece}).sum(1).sum();
  const int64_t rest = numbers.size(0) - whole;
  return rest == 0 ? sum : sum + numbers.narrow(0, whole, rest).sum();
}

// Returns mean and deviation, computed from all values in order, not incrementally, so that errors
// do not accumulate and a resumed run computes the same values.
std::pair<double, double> window_stats(const std::vector<double>& values) {
  // Lower bound of the deviation, for values that differ by rounding only.
  constexpr double kMinRelativeDeviation = 1e-6;
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return {mean, std::max(std::sqrt(squares / (count - 1)), kMinRelativeDeviation * std::abs(mean))};
}

// Adds `value` to the window, clipped to its threshold; returns a clause if it exceeds that.
std::string add_value(std::vector<double>& values, const char* name, double value, double z) {
  std::string why;
  double entered = value;
  if (std::ssize(values) >= kOutlierStart) {
    const auto [mean, deviation] = window_stats(values);
    const double bound = mean + z * deviation;
    if (value > bound) {
      why = fmt::format(
          "the {} {:.4g} lies {:.3g} standard deviations above the mean {:.4g} of "
          "the last {} steps",
          name, value, (value - mean) / deviation, mean, values.size());
      entered = bound;
    }
  }
  values.push_back(entered);
  if (std::ssize(values) > kOutlierWindow) {
    values.erase(values.begin());
  }
  return why;
}

}  // namespace

std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout) {
  std::vector<Slice> slices;
  for (const auto& parameter : parameters) {
    Slice slice{parameter.name, parameter.tensor, parameter.tensor.sizes().vec(), 0};
    if (parameter.is_expert) {
      slice.shape[0] *= layout.group();
      slice.begin = layout.ep_rank() * parameter.tensor.numel();
    } else if (parameter.shard.defined()) {
      slice.values = parameter.shard;
      slice.begin = parameter.shard_begin;
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

AdamW::AdamW(const std::vector<Slice>& slices, const AdamWSettings& settings, uint64_t seed)
    : settings_(settings) {
  auto& [decayed, not_decayed] = groups_;
  decayed.weight_decay = settings.weight_decay;
  const auto type = model::scalar_type(settings.moments);
  for (const auto& slice : slices) {
    const Tensor& weight = slice.values;
    Group& group = is_decayed(slice, settings) ? decayed : not_decayed;
    group.slots.push_back({slice, at::zeros_like(weight, type), at::zeros_like(weight, type),
                           at::zeros({}, weight.scalar_type()),
                           Random(seed, "exp_avg." + slice.name).bits(),
                           Random(seed, "exp_avg_sq." + slice.name).bits()});
  }
}

std::vector<Slice> AdamW::state() const {
  std::vector<Slice> all;
  for (const Group& group : groups_) {
    for (const auto& [slice, mean, square, updates, mean_stream, square_stream] : group.slots) {
      all.push_back({"exp_avg." + slice.name, mean, slice.shape, slice.begin});
      all.push_back({"exp_avg_sq." + slice.name, square, slice.shape, slice.begin});
      all.push_back({"updates." + slice.name, updates, {}, 0});
    }
  }
  return all;
}

void AdamW::step(double lr, double gradient_scale) {
  for (const Group& group : groups_) {
    step_group(group, lr, gradient_scale);
  }
}

void AdamW::clear_gradients() {
  for (const Group& group : groups_) {
    for (const auto& slot : group.slots) {
      slot.slice.values.mutable_grad() = Tensor();
    }
  }
}

void AdamW::step_group(const Group& group, double lr, double gradient_scale) const {
  const at::NoGradGuard no_grad;
  std::vector<const Slot*> slots;
  Tensors tensors;
  auto& [weights, gradients, means, squares, updates] = tensors;
  for (const auto& slot : group.slots) {
    const Tensor& weight = slot.slice.values;
    if (!weight.grad().defined()) {
      continue;
    }
    slots.push_back(&slot);
    weights.push_back(weight);
    gradients.push_back(weight.grad().contiguous());  // required by the fused kernel
    means.push_back(slot.mean);
    squares.push_back(slot.square);
    updates.push_back(slot.updates);
  }
  if (weights.empty()) {
    return;
  }
  at::_foreach_add_(updates, 1);
  Factors factors{lr, group.weight_decay, {}};
  if (gradient_scale != 1) {
    factors.gradient_scale =
        at::full({1}, gradient_scale, weights.front().options().dtype(at::kFloat));
  }
  if (settings_.moments == io::DType::kF32) {
    update(tensors, factors);
    return;
  }
  const Tensor counts = at::stack(updates).to(at::kLong);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto t = static_cast<uint64_t>(counts.const_data_ptr<int64_t>()[i]);
    step_rounded(*slots[i], factors, t);
  }
}

void AdamW::step_rounded(const Slot& slot, const Factors& factors, uint64_t t) const {
  const Tensor weight = slot.slice.values.view({-1}), mean = slot.mean.view({-1});
  const Tensor square = slot.square.view({-1});
  const Tensor gradient = slot.slice.values.grad().contiguous().view({-1});
  const int64_t count = weight.size(0);
  const int64_t most = std::min(count, kernels::device_traits(weight.device()).elementwise_numel);
  const Tensor wide_mean = at::empty({most}, weight.options());
  const Tensor wide_square = at::empty({most}, weight.options());
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t length = std::min(most, count - begin);
    const Tensor m = wide_mean.narrow(0, 0, length), v = wide_square.narrow(0, 0, length);
    const Tensor kept_m = mean.narrow(0, begin, length), kept_v = square.narrow(0, begin, length);
    m.copy_(kept_m);
    v.copy_(kept_v);
    update({{weight.narrow(0, begin, length)},
            {gradient.narrow(0, begin, length)},
            {m},
            {v},
            {slot.updates}},
           factors);
    const int64_t first = slot.slice.begin + begin;
    kernels::stochastic_round(m, kept_m, kernels::rounding_key(slot.mean_stream, t), first);
    kernels::stochastic_round(v, kept_v, kernels::rounding_key(slot.square_stream, t), first);
  }
}

void AdamW::update(const Tensors& tensors, const Factors& factors) const {
  const auto& [weights, gradients, means, squares, updates] = tensors;
  for (size_t i = 0; i < weights.size(); ++i) {
    kernels::adamw_(gradients[i], weights[i], means[i], squares[i],
                    kernels::bf16_working_copy(weights[i]),
                    {factors.lr, settings_.beta1, settings_.beta2, settings_.eps,
                     factors.weight_decay, updates[i].to(at::kLong).item<int64_t>()},
                    factors.gradient_scale);
    weights[i].unsafeGetTensorImpl()->bump_version();  // written by our kernel
    kernels::mark_bf16_working_copy_current(weights[i]);
  }
}

double gradient_norm(const std::vector<Slice>& slices) {
  const at::NoGradGuard no_grad;
  const auto options = slices.empty() ? at::TensorOptions() : slices.front().values.options();
  Tensor sum = at::zeros({}, options.dtype(at::kDouble));
  for (const auto& slice : slices) {
    if (!slice.values.grad().defined()) {
      continue;
    }
    const Tensor flat = slice.values.grad().reshape({-1});
    const int64_t whole = flat.size(0) / kNormPiece * kNormPiece;
    const Tensor pieces = flat.narrow(0, 0, whole).view({-1, kNormPiece});
    for (const Tensor& part : {pieces, flat.narrow(0, whole, flat.size(0) - whole).view({1, -1})}) {
      if (part.numel() > 0) {  // saves five launches on a GPU
        sum += sum_in_order(
            at::linalg_vector_norm(part, 2, at::IntArrayRef{1}).to(at::kDouble).square());
      }
    }
  }
  return std::sqrt(sum.item<double>());
}

double clip_scale(double norm, double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  return max_norm <= 0 || scale >= 1 ? 1 : scale;
}

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
    if (const auto [length, begin, end] = held.part; begin < end) {
      Slice slice = whole[i];
      if (!held.is_sharded) {
        slice.values = parameter.detach().view({-1}).narrow(0, begin, end - begin);
        slice.begin += begin;
      }
      held.slice = slice.values;
      slices_.push_back(std::move(slice));
    }
    held_.push_back(std::move(held));
  }
}

Tensor RankShards::padded(const Tensor& flat, const HeldParameter& held) {
  const int64_t whole = held.part.length * held.holders->size();
  return flat.numel() == whole ? flat : at::constant_pad_nd(flat, {0, whole - flat.numel()});
}

std::vector<double> RankShards::count_gradients() const {
  std::vector<double> has;
  for (const auto& held : held_) {
    has.push_back(held.parameter.grad().defined() ? 1 : 0);
  }
  return distributed::sum_numbers(world_.all, has);
}

void RankShards::reduce_gradients() {
  const at::NoGradGuard no_gradients;
  const std::vector<double> counts = count_gradients();
  for (size_t i = 0; i < held_.size(); ++i) {
    HeldParameter& held = held_[i];
    if (held.is_sharded) {
      continue;
    }
    Tensor sum;
    if (counts[i] > 0) {
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
  const double own = gradient_norm(slices_);
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
      slices_(shards_ ? shards_->slices() : held_slices(trained)),
      optimizer_(slices_, settings, seed) {}

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
    return train::gradient_norm(slices_);
  }
  shards_->reduce_gradients();
  return shards_->norm();
}

void Updater::step(double norm, double clip, double lr) {
  RECORD_USER_SCOPE("optimizer");
  optimizer_.step(lr, clip_scale(norm, clip));
  if (shards_) {
    shards_->gather_weights();
  }
}

}  // namespace moe::train
