#include "core/train/step/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/config/folder_tensors.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/device.h"

namespace moe::train {
namespace {

using at::Tensor;

const std::vector<std::string> kGroups = {"experts", "router", "attention",
                                          "dense",   "norms",  "embeddings"};

constexpr const char* kAdapters = "adapters";  // not a group of --train: adapters always train

std::string parameter_group(const std::string& name, const model::ModelConfig& config) {
  if (name.ends_with(".lora_a") || name.ends_with(".lora_b")) {
    return kAdapters;
  }
  for (const auto& [part, group] :  // a shared expert is used by every token, like a dense layer
       {std::pair("norm", "norms"),
        {".self_attn.", "attention"},
        {".mlp.router", "router"},
        {".mlp.shared_expert", "dense"}}) {
    if (name.find(part) != std::string::npos) {
      return group;
    }
  }
  if (name.find(".mlp.") != std::string::npos) {
    return config.is_moe_layer(layer_index(name)) ? "experts" : "dense";
  }
  return "embeddings";  // and the head
}

// Returns true if `name` matches the shell pattern.
bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

void check_words(const std::vector<std::string>& words) {
  constexpr int64_t kMaxStars = 4;  // matching time is exponential in their number
  for (const auto& word : words) {
    const auto stars = std::ranges::count(word, '*');
    USER_ERROR_IF(stars > kMaxStars, "--train '{}': a pattern may have {} stars, this has {}", word,
                  kMaxStars, stars);
    USER_ERROR_IF(stars == 0 && std::ranges::find(kGroups, word) == kGroups.end(),
                  "--train '{}' is unknown{}; known: {}, or a pattern like model.layers.0.*", word,
                  did_you_mean(word, kGroups), fmt::join(kGroups, ", "));
  }
}

// Elements per f32 norm. An f32 norm of 2^20 equal numbers has an error of 4e-4 (measured); one of
// kNormPiece numbers has none. Pieces are added in f64.
constexpr int64_t kNormPiece = 1024;

bool is_decayed(const Slice& slice, const AdamWSettings& settings) {
  const bool is_embedding = slice.name == "model.embed_tokens" || slice.name == "lm_head";
  return slice.shape.size() > 1 && (settings.decay_embeddings || !is_embedding);
}

// Returns the sum of f64 numbers [n], equal for any number of threads. LibTorch's sum() on the CPU
// adds large tensors in an order that depends on the number of threads.
Tensor sum_in_order(const Tensor& numbers) {
  const int64_t whole = numbers.size(0) / kNormPiece * kNormPiece;
  if (whole == 0) {
    return numbers.sum();
  }
  const Tensor sum = numbers.narrow(0, 0, whole).view({-1, kNormPiece}).sum(1).sum();
  const int64_t rest = numbers.size(0) - whole;
  return rest == 0 ? sum : sum + numbers.narrow(0, whole, rest).sum();
}

// Returns mean and standard deviation. They are computed from all values in order, not
// incrementally: errors do not accumulate, and a resumed run computes equal values.
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

// Adds `value`, clipped to the threshold of the window. Returns a clause if `value` exceeds the
// threshold, else "".
std::string add_value(std::vector<double>& values, const char* name, double value, double z) {
  std::string why;
  double clipped = value;
  if (std::ssize(values) >= kOutlierStart) {
    const auto [mean, deviation] = window_stats(values);
    const double bound = mean + z * deviation;
    if (value > bound) {
      why = fmt::format(
          "the {} {:.4g} is {:.3g} standard deviations above the mean {:.4g} of "
          "the last {} steps",
          name, value, (value - mean) / deviation, mean, values.size());
      clipped = bound;
    }
  }
  values.push_back(clipped);
  if (std::ssize(values) > kOutlierWindow) {
    values.erase(values.begin());
  }
  return why;
}

// Updates a parameter, or a piece of it, in place. Moments are f32.
void update(const Tensor& weight, const Tensor& gradient, const Tensor& mean, const Tensor& square,
            const kernels::AdamWSettings& settings, const Tensor& gradient_scale) {
  kernels::adamw_(gradient, weight, mean, square, kernels::bf16_working_copy(weight), settings,
                  gradient_scale);
  weight.unsafeGetTensorImpl()->bump_version();  // adamw_() does not
  kernels::mark_bf16_working_copy_current(weight);
}

// Pads the elements of a parameter with zeros to parts of equal length.
Tensor padded(const Tensor& flat, const distributed::Part& part, const distributed::Comm& holders) {
  const int64_t whole = part.length * holders.size();
  return flat.numel() == whole ? flat : at::constant_pad_nd(flat, {0, whole - flat.numel()});
}

}  // namespace

bool trains_router(const std::vector<std::string>& words, int64_t layer) {
  const auto names_router = [&](const std::string& word) {
    return word == "router" || matches(word, fmt::format("model.layers.{}.mlp.router", layer));
  };
  return words.empty() || std::ranges::any_of(words, names_router);
}

bool trains_router(const std::vector<std::string>& words, const model::ModelConfig& config) {
  return config.moe && std::ranges::any_of(config.moe->layers, [&](int64_t layer) {
           return trains_router(words, layer);
         });
}

bool is_gathered_in_bf16(const model::NamedParameter& parameter, const TrainSettings& settings) {
  const bool is_looked_up = parameter.name == "model.embed_tokens";
  return settings.on_cuda && settings.compute.precision == model::Precision::kBf16 &&
         parameter.is_dense_matrix && !is_looked_up;
}

bool has_bf16_copy(const model::NamedParameter& parameter, const model::ModelConfig& config,
                   const TrainSettings& settings) {
  const bool is_looked_up = parameter.name == "model.embed_tokens" && !config.tie_word_embeddings;
  return settings.on_cuda && settings.compute.precision == model::Precision::kBf16 &&
         settings.compute.recompute != model::Recompute::kLayer && parameter.tensor.dim() > 1 &&
         !is_looked_up && !parameter.shard.defined() &&
         parameter_group(parameter.name, config) != "router" &&
         !parameter.name.ends_with(".mlp.shared_expert_gate");
}

int64_t layer_index(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words) {
  check_words(words);
  std::vector<model::NamedParameter> all = model.parameters();
  const bool has_adapters = model.lora().rank > 0;
  if (words.empty() && !has_adapters) {
    return all;
  }
  std::set<std::string> adapted;  // weights with an adapter
  for (const auto& parameter : all) {
    if (parameter.name.ends_with(".lora_a")) {
      adapted.insert(parameter.name.substr(0, parameter.name.rfind('.')));
    }
  }
  std::vector<model::NamedParameter> selected;
  std::set<std::string> used;
  for (const auto& parameter : all) {
    const std::string group = parameter_group(parameter.name, model.config());
    bool is_named = group == kAdapters || (words.empty() && group == "router");
    for (const auto& word : words) {
      if (word == group || matches(word, parameter.name)) {
        USER_ERROR_IF(adapted.contains(parameter.name),
                      "--train '{}': {} has an adapter (--lora), which trains in its place; leave "
                      "the word out, or choose the modules with adapters by --lora-on",
                      word, parameter.name);
        is_named = true;
        used.insert(word);
      }
    }
    if (is_named) {
      selected.push_back(parameter);
    }
  }
  for (const auto& word : words) {
    USER_ERROR_IF(used.count(word) == 0,
                  "--train '{}' matches no parameter of this model, from {} to {}", word,
                  all.front().name, all.back().name);
  }
  return selected;
}

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
  const auto type = model::scalar_type(settings.moments);
  for (const auto& slice : slices) {
    const Tensor& weight = slice.values;
    slots_.push_back({slice, is_decayed(slice, settings) ? settings.weight_decay : 0,
                      at::zeros_like(weight, type), at::zeros_like(weight, type),
                      at::zeros({}, weight.scalar_type()),
                      Random(seed, "exp_avg." + slice.name).bits(),
                      Random(seed, "exp_avg_sq." + slice.name).bits()});
  }
  std::ranges::stable_partition(slots_,
                                [&](const Slot& slot) { return is_decayed(slot.slice, settings); });
}

std::vector<Slice> AdamW::state() const {
  std::vector<Slice> all;
  for (const Slot& slot : slots_) {
    const auto& [name, values, shape, begin] = slot.slice;
    all.push_back({"exp_avg." + name, slot.mean, shape, begin});
    all.push_back({"exp_avg_sq." + name, slot.square, shape, begin});
    all.push_back({"updates." + name, slot.updates, {}, 0});
  }
  return all;
}

void AdamW::clear_gradients() {
  for (const auto& slot : slots_) {
    slot.slice.values.mutable_grad() = Tensor();
  }
}

void AdamW::step(double lr, double gradient_scale) {
  const at::NoGradGuard no_grad;
  Tensor scale;  // undefined: 1
  if (gradient_scale != 1 && !slots_.empty()) {
    scale = at::full({1}, gradient_scale, slots_.front().slice.values.options().dtype(at::kFloat));
  }
  for (const Slot& slot : slots_) {
    const Tensor& weight = slot.slice.values;
    if (!weight.grad().defined()) {
      continue;
    }
    const Tensor gradient = weight.grad().contiguous();
    const auto t = static_cast<int64_t>(slot.updates.add_(1).item<double>());
    const kernels::AdamWSettings factors{
        lr, settings_.beta1, settings_.beta2, settings_.eps, slot.weight_decay, t};
    if (settings_.moments == io::DType::kF32) {
      update(weight, gradient, slot.mean, slot.square, factors, scale);
      continue;
    }
    const uint64_t mean_key = kernels::rounding_key(slot.mean_stream, t);
    const uint64_t square_key = kernels::rounding_key(slot.square_stream, t);
    const int64_t count = weight.numel();
    const int64_t max_length =
        std::min(count, kernels::device_traits(weight.device()).elementwise_numel);
    const Tensor f32_mean = at::empty({max_length}, weight.options());
    const Tensor f32_square = at::empty({max_length}, weight.options());
    for (int64_t begin = 0; begin < count; begin += max_length) {
      const int64_t length = std::min(max_length, count - begin);
      const auto piece = [&](const Tensor& whole) {
        return whole.view({-1}).narrow(0, begin, length);
      };
      const Tensor mean = f32_mean.narrow(0, 0, length), square = f32_square.narrow(0, 0, length);
      mean.copy_(piece(slot.mean));
      square.copy_(piece(slot.square));
      update(piece(weight), piece(gradient), mean, square, factors, scale);
      const int64_t first = slot.slice.begin + begin;
      kernels::stochastic_round(mean, piece(slot.mean), mean_key, first);
      kernels::stochastic_round(square, piece(slot.square), square_key, first);
    }
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

Updater::Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
                 uint64_t seed, distributed::World* world)
    : trained_(trained),
      world_(world),
      slices_(make_slices()),
      optimizer_(slices_, settings, seed) {}

// Returns the slices that this process updates: whole parameters, or with several processes flat
// views of its parts. Fills shared_.
std::vector<Slice> Updater::make_slices() {
  if (world_ == nullptr) {
    return held_slices(trained_);
  }
  const std::vector<Slice> held = held_slices(trained_, world_->layout);
  std::vector<Slice> own;
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Tensor& parameter = trained_[i].tensor;
    distributed::Comm& holders = parameter_holders(trained_[i], *world_);
    const distributed::Part part(parameter.numel(), holders);
    shared_.push_back({parameter, &holders, part, {}, trained_[i].shard.defined()});
    if (part.size() == 0) {
      continue;
    }
    Slice slice = held[i];
    if (!shared_.back().is_sharded) {
      slice.values = parameter.detach().view({-1}).narrow(0, part.begin, part.size());
      slice.begin += part.begin;
    }
    shared_.back().slice = slice.values;
    own.push_back(std::move(slice));
  }
  return own;
}

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
  if (world_ == nullptr) {
    return train::gradient_norm(slices_);
  }
  reduce_gradients();
  const double own = train::gradient_norm(slices_);
  return std::sqrt(distributed::sum_numbers(world_->all, {own * own}).front());
}

// Moves the sums of the gradients over their holders to the slices. A slice gets no gradient if no
// process has one.
void Updater::reduce_gradients() {
  const at::NoGradGuard no_gradients;
  std::vector<double> counts;  // per parameter: number of processes with a gradient
  for (const auto& shared : shared_) {
    counts.push_back(shared.parameter.grad().defined() ? 1 : 0);
  }
  counts = distributed::sum_numbers(world_->all, counts);
  for (size_t i = 0; i < shared_.size(); ++i) {
    const auto& [parameter, holders, part, slice, is_sharded] = shared_[i];
    if (is_sharded) {
      continue;
    }
    Tensor sum;
    if (counts[i] > 0) {
      const Tensor& own = parameter.grad();
      sum = own.defined() ? own.contiguous().view({-1}) : at::zeros_like(parameter).view({-1});
      if (holders->size() > 1) {
        const Tensor flat = sum;
        sum = at::empty({part.length}, flat.options());
        holders->reduce_scatter(padded(flat, part, *holders), sum);
        sum = sum.narrow(0, 0, part.size());
      }
    }
    parameter.mutable_grad() = Tensor();
    if (slice.defined()) {
      slice.mutable_grad() = sum;
    }
  }
}

void Updater::step(double norm, double clip, double lr) {
  RECORD_USER_SCOPE("optimizer");
  optimizer_.step(lr, clip_scale(norm, clip));
  gather_weights();
}

// All-gathers the weights of the slices.
void Updater::gather_weights() const {
  const at::NoGradGuard no_gradients;
  for (const auto& [parameter, holders, part, slice, is_sharded] : shared_) {
    if (holders->size() == 1 || is_sharded) {
      continue;
    }
    const Tensor flat = parameter.detach().view({-1});
    const Tensor all = padded(flat, part, *holders);  // `flat` if all parts have equal length
    holders->all_gather(all.narrow(0, holders->rank() * part.length, part.length), all);
    if (!all.is_alias_of(flat)) {
      flat.copy_(all.narrow(0, 0, flat.numel()));
    }
  }
}

}  // namespace moe::train
