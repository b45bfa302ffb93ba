#include "core/model/llama/llama.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/model/llama/llama_weights.h"
#include "core/model/llama/recompute.h"
#include "kernels/ops/device.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/operations.h"
#include "kernels/ops/rms_norm.h"

namespace moe::model {
namespace {

using at::Tensor;

at::ScalarType activation_type(const ComputeOptions& compute) {
  return compute.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

// Inputs that all layers of one forward share. The backward of recomputed layers keeps them alive.
struct Pass {
  Pass(const ModelConfig& model, const ComputeOptions& compute, const Packed& packed,
       const RoutingOptions& options, const ExpertParallel& parallel, at::Device device)
      : config(model),
        type(activation_type(compute)),
        tokens(packed),
        routing(options),
        partition(tokens.ids.size(0), options.ep_ranks, parallel,
                  options.compute_sequence_balance ? std::ssize(tokens.lengths) : 0),
        gate_scale(options.gate_scale.value_or(model.moe ? model.moe->gate_scale : 1.0)) {
    partition.local.compute_z_loss = options.compute_z_loss;
    partition.local.sum_losses = options.loss_group != route::LossGroup::kRank;
    if (options.compute_sequence_balance) {
      auto& sequence = partition.local.sequence.emplace();  // [T]
      for (size_t number = 0; number < tokens.lengths.size(); ++number) {
        sequence.insert(sequence.end(), tokens.lengths[number], static_cast<int64_t>(number));
      }
    }
    if (tokens.output_rows.defined()) {
      tokens.output_rows = tokens.output_rows.to(device);
    }
    adds_in_place = !at::GradMode::is_enabled() && kernels::has_kernel<"moe::matmul_out">(device);
    if (tokens.caches.empty()) {
      make_tables(device);
    } else {
      prepare_caches(device);
    }
  }

  // Makes the tables of packed_attention() on a device without a kernel for causal_attention().
  // packed_attention() supports prefixes only in inference with the flash kernel.
  void make_tables(at::Device device) {
    if (!kernels::has_kernel<"moe::causal_attention">(device) &&
        (tokens.prefix_index.empty() ||
         (!at::GradMode::is_enabled() && fits_flash(type, config)))) {
      if (auto pack = pack_tables(tokens.lengths, tokens.prefix_index, config, device)) {
        tables = std::make_shared<const PackTables>(std::move(*pack));
      }
    }
  }

  void prepare_caches(at::Device device) {
    MOE_CHECK(tokens.caches.size() == tokens.lengths.size() && tokens.prefix_index.empty());
    std::vector<int64_t> starts;
    for (size_t i = 0; i < tokens.caches.size(); ++i) {
      starts.push_back(tokens.caches[i]->length());
      tokens.caches[i]->reserve(tokens.lengths[i]);
    }
    if (kernels::has_kernel<"moe::causal_attention">(device)) {
      rotations = rotations_at(tokens.lengths, starts, config);
    }
  }

  // Returns the rows of `all` [T, ..] that are needed after the attention: output_rows in a dense
  // last layer, else all rows. An MoE layer needs all rows, because tokens compete for experts.
  Tensor rows_after_attention(const Tensor& all, const Layer& layer, int64_t index) const {
    const Tensor& rows = tokens.output_rows;
    const bool selects = rows.defined() && index + 1 == config.layers && !layer.router.defined();
    return selects ? all.index_select(0, rows) : all;
  }

  Tensor norm(const Tensor& x, const Tensor& weight) const {
    return kernels::rms_norm(x, weight, config.rms_norm_eps, /*to_bf16=*/type == at::kBFloat16);
  }

  const ModelConfig& config;
  at::ScalarType type;  // of operands and outputs of products
  Packed tokens;        // output_rows on the model's device
  std::shared_ptr<const PackTables> tables;
  RopeTable rotations;  // [T, A], only for KvCache::cpu_layer()
  // Layers update the residual stream in place (add_linear()): in inference with our GEMM.
  bool adds_in_place = false;
  RoutingOptions routing;
  TokenPartition partition;
  double gate_scale;
};

// Returns the outputs [N, H A] of all heads in layer `index` for rows_after_attention(). If x has
// no rows, it is also multiplied by every weight, so that the backward of a rank without tokens
// runs the same all-to-alls as the backward of other ranks.
Tensor attention_heads(const Tensor& x, const Layer& layer, const Pass& pass, int64_t index) {
  const ModelConfig& config = pass.config;
  const Packed& tokens = pass.tokens;
  const AttentionWeights& attention = layer.attention;
  const Tensor normed = pass.norm(x, layer.input_norm);
  if (x.size(0) == 0) {
    return project_qkv(normed, attention, config).narrow(1, 0, attention.output.inner());
  }
  const Tensor heads =
      tokens.caches.empty()
          ? self_attention(normed, attention, config,
                           {tokens.lengths, tokens.prefix_index, pass.tables.get()})
          : attend_with_kv_cache(normed, attention, config, tokens.lengths, tokens.caches, index,
                                 pass.rotations);
  return pass.rows_after_attention(heads, layer, index);
}

// Returns the output of the attention of layer `index` for rows_after_attention(). x [T, D] f32.
Tensor attention_block(const Tensor& x, const Layer& layer, const Pass& pass, int64_t index) {
  return adapted_linear(attention_heads(x, layer, pass, index), layer.attention.output, {},
                        layer.attention.output_adapter);
}

struct PostAttention {
  Tensor x;       // [T, D] f32, the residual stream after the attention
  Tensor normed;  // [T, D], input of the feed-forward
};

// Adds the attention of layer `index` to x. Works in place if Pass::adds_in_place is set.
PostAttention after_attention(const Tensor& x, const Layer& layer, const Pass& pass,
                              int64_t index) {
  if (pass.adds_in_place && x.size(0) > 0 && !layer.attention.output_adapter.defined()) {
    const Tensor rows = attention_heads(x, layer, pass, index);
    Tensor sum = pass.rows_after_attention(x, layer, index);
    kernels::add_linear(sum, rows, layer.attention.output);
    return {sum, pass.norm(sum, layer.post_norm)};
  }
  const Tensor added = attention_block(x, layer, pass, index);
  auto [sum, normed] = kernels::add_rms_norm(pass.rows_after_attention(x, layer, index), added,
                                             layer.post_norm, pass.config.rms_norm_eps,
                                             /*to_bf16=*/pass.type == at::kBFloat16);
  return {std::move(sum), std::move(normed)};
}

void set_layer(const ExpertParallel& parallel, int64_t layer) {
  if (parallel.group != nullptr) {
    parallel.group->trace.layer = layer;
  }
}

struct FeedForwardOutput {
  Tensor x;  // [T, D] f32, the residual stream after the layer
  route::AuxLosses losses = {};
  route::Counters counters = {};
  Tensor token_rows = {};
};

FeedForwardOutput feed_forward_block(const PostAttention& input, const Layer& layer,
                                     const Pass& pass,
                                     std::optional<route::Routing>* saved_routing) {
  const auto& [x, normed] = input;
  const Experts& experts = layer.experts;
  if (!layer.router.defined() && pass.adds_in_place && !experts.has_adapters()) {
    Tensor sum = x;
    kernels::add_swiglu(sum, normed, experts.gate_up, experts.down);
    return {sum};
  }
  if (!layer.router.defined()) {
    return {x + experts.run(normed, {x.size(0)})};
  }
  // The residual is added last, after a shared expert.
  const bool has_shared = layer.shared_expert.defined();
  MoeOutput out = moe_forward(
      normed, {layer.router, pass.routing.router, layer.router_bias}, experts, pass.partition,
      {pass.gate_scale, pass.routing.count_tokens, saved_routing, has_shared ? Tensor() : x});
  if (has_shared) {
    out.y = x + (out.y + layer.shared_expert.run(normed));
  }
  return {out.y, out.losses, std::move(out.counters), std::move(out.token_rows)};
}

// Returns the outputs of a layer that may have a gradient.
std::vector<Tensor*> layer_outputs(FeedForwardOutput& out) {
  std::vector<Tensor*> outputs{&out.x};
  for (const auto loss : route::kAllLosses) {
    outputs.push_back(&(out.losses.*loss));
  }
  outputs.push_back(&out.losses.balance.scores);
  return outputs;
}

// Runs the feed-forward block, or the whole layer, and saves only x and the routing decisions for
// backward. The model must outlive its backward.
FeedForwardOutput recomputed_block(const Tensor& x, const Layer& layer,
                                   const std::shared_ptr<const Pass>& pass, int64_t index,
                                   bool with_attention) {
  const auto saved_routing = std::make_shared<std::optional<route::Routing>>();
  const auto first = std::make_shared<FeedForwardOutput>();
  const auto tensors = recomputed(
      [&layer, pass, index, with_attention, saved_routing, first](const Tensor& input) {
        const bool is_recomputation = saved_routing->has_value();
        set_layer(pass->partition.parallel, index);
        const PostAttention after = with_attention
                                        ? after_attention(input, layer, *pass, index)
                                        : PostAttention{input, pass->norm(input, layer.post_norm)};
        FeedForwardOutput out = feed_forward_block(after, layer, *pass, saved_routing.get());
        if (!is_recomputation) {
          first->counters = std::move(out.counters);
          first->losses.balance.counted = out.losses.balance.counted;
          first->token_rows = std::move(out.token_rows);
        }
        std::vector<Tensor> results;
        for (const Tensor* output : layer_outputs(out)) {
          results.push_back(*output);
        }
        return results;
      },
      x);
  FeedForwardOutput out = std::move(*first);
  auto next = tensors.begin();
  for (Tensor* output : layer_outputs(out)) {
    *output = *next++;
  }
  return out;
}

// Returns the unit to prefetch after a layer, or -1: inference may not need the head.
int64_t unit_after(int64_t layer, const ModelConfig& config) {
  if (layer + 1 < config.layers) {
    return static_cast<int64_t>(layer_unit(layer + 1));
  }
  return at::GradMode::is_enabled() ? static_cast<int64_t>(head_unit(config)) : -1;
}

Tensor embed(const Tensor& embedding, const Tensor& ids, WeightShards* shards) {
  if (shards == nullptr) {
    return at::embedding(embedding, ids).to(at::kFloat);
  }
  shards->gather(kEmbeddingUnit);
  shards->start(layer_unit(0));
  shards->expect_gradients(kEmbeddingUnit);
  const Tensor x = at::embedding(embedding, ids).to(at::kFloat);
  shards->release(kEmbeddingUnit);
  return x;
}

// Merges the adapter into its weight, or into the local shard of the weight.
void merge_adapter(const WeightSlot& slot, const WeightShards* shards) {
  Adapter& adapter = *slot.adapter;
  const auto* sharded = shards == nullptr ? nullptr : shards->find(*slot.tensor);
  if (sharded == nullptr) {
    slot.tensor->copy_(merged_weight(*slot.tensor, adapter));
  } else {
    const Tensor product = at::matmul(adapter.b, adapter.a).view({-1});
    const auto& [length, begin, end] = sharded->part;
    sharded->shard.copy_(sharded->shard + product.narrow(0, begin, end - begin) * adapter.scale);
  }
  adapter = {};
}

// Throws UserError if a sequence, with its prefix or cache, is longer than the sliding window, up
// to which full attention equals windowed attention.
void check_window(int64_t window, const Packed& tokens) {
  std::vector<int64_t> ends;
  for (size_t sequence = 0; sequence < tokens.lengths.size(); ++sequence) {
    const int64_t prefix = tokens.prefix_index.empty() ? -1 : tokens.prefix_index[sequence];
    const int64_t cached = tokens.caches.empty() ? 0 : tokens.caches[sequence]->length();
    ends.push_back((prefix < 0 ? cached : ends[prefix]) + tokens.lengths[sequence]);
    USER_ERROR_IF(ends.back() > window,
                  "a text of {} tokens is longer than the {} of sliding_window in config.json, and "
                  "windowed attention is not supported: give shorter texts, or set sliding_window "
                  "to null if the model was trained without one",
                  ends.back(), window);
  }
}

}  // namespace

Llama::Llama() = default;
Llama::~Llama() = default;
Llama::Llama(Llama&&) noexcept = default;
Llama& Llama::operator=(Llama&&) noexcept = default;

Llama Llama::without_weights(const ModelConfig& config, const distributed::Layout& layout) {
  Llama model;
  model.weights_ = std::make_unique<Weights>(config, ExpertParallel{nullptr, layout}, at::kMeta);
  return model;
}

Llama Llama::clone(std::optional<at::Device> to_device) const {
  const at::NoGradGuard no_gradients;
  Llama copy;
  const auto& shards = weights_->shards;
  const at::Device new_device = to_device.value_or(device());
  copy.weights_ = std::make_unique<Weights>(weights_->config, weights_->parallel, new_device,
                                            shards ? &shards->ranks() : nullptr);
  copy.weights_->compute = weights_->compute;
  copy.add_lora(weights_->lora, /*seed=*/0);
  copy.set_router_bias(!router_biases().empty());
  for (const auto& [name, tensor] : weights_->unused_gates) {
    copy.weights_->unused_gates[name] = tensor.to(new_device);
  }
  const auto from = weights_->stored_views(FolderForm::kMoe);
  for (const auto& [name, to] : copy.weights_->stored_views(FolderForm::kMoe)) {
    to.copy_(from.at(name));
  }
  if (shards) {
    auto own = shards->weights().begin();
    for (const ShardedWeight& weight : copy.weights_->shards->weights()) {
      weight.shard.copy_((own++)->shard);
    }
  }
  const auto own_slots = weights_->slots(), new_slots = copy.weights_->slots();
  for (size_t index = 0; index < own_slots.size(); ++index) {
    if (const Adapter* own = own_slots[index].adapter; own != nullptr && own->defined()) {
      new_slots[index].adapter->a.copy_(own->a);
      new_slots[index].adapter->b.copy_(own->b);
    }
  }
  return copy;
}

Llama Llama::merged() const {
  const at::NoGradGuard no_gradients;
  Llama copy = clone();
  for (const WeightSlot& slot : copy.weights_->slots()) {
    if (slot.adapter != nullptr && slot.adapter->defined()) {
      merge_adapter(slot, copy.weights_->shards.get());
    }
  }
  copy.weights_->lora = {};
  return copy;
}

void Llama::add_lora(const LoraSettings& settings, uint64_t seed) {
  MOE_CHECK(weights_->storage == Storage::kF32 || settings.rank == 0, "adapters for inference");
  weights_->lora = settings;
  uint64_t number = 0;
  for (const WeightSlot& slot : weights_->slots()) {
    if (slot.adapter == nullptr) {
      continue;
    }
    ++number;
    if (settings.is_on(slot.lora_part)) {
      const uint64_t slot_seed = seed * 0x9e3779b97f4a7c15ULL + number;
      const ExpertRange range = slot.kind == WeightSlot::Kind::kExperts
                                    ? ExpertRange{layout().first_expert(), config().moe->experts}
                                    : ExpertRange{};
      *slot.adapter = make_adapter(*slot.tensor, settings.rank, settings.scale(), slot_seed, range);
    }
  }
}

void Llama::set_router_bias(bool has_bias) {
  for (auto& layer : weights_->layers) {
    if (layer.router.defined() && has_bias != layer.router_bias.defined()) {
      layer.router_bias =
          has_bias ? at::zeros({layer.router.size(0)}, layer.router.options()) : Tensor();
    }
  }
}

std::vector<Tensor> Llama::router_biases() const {
  std::vector<Tensor> all;
  for (const auto& layer : weights_->layers) {
    if (layer.router_bias.defined()) {
      all.push_back(layer.router_bias);
    }
  }
  return all;
}

const ModelConfig& Llama::config() const { return weights_->config; }

const distributed::Layout& Llama::layout() const { return weights_->parallel.layout; }

at::Device Llama::device() const { return weights_->embedding.device(); }

uint64_t Llama::mapped_bytes() const {
  uint64_t bytes = 0;
  if (weights_->is_mapped) {
    for (const auto& [name, tensor] : weights_->stored_views(FolderForm::kMoe)) {
      bytes += tensor.nbytes();
    }
  }
  return bytes;
}

void Llama::set_group(distributed::Comm* group) {
  MOE_CHECK((group == nullptr ? 1 : group->size()) == layout().group(),
            "a model of {} processes in a group of another size", layout().group());
  weights_->parallel.group = group;
  weights_->parallel.overlap_all_to_all =
      group != nullptr && kernels::device_traits(group->device()).has_streams;
}

RoutingOptions Llama::default_routing() const {
  const auto& moe = weights_->config.moe;
  return moe ? RoutingOptions{moe->router, moe->ep_ranks} : RoutingOptions{};
}

const LoraSettings& Llama::lora() const { return weights_->lora; }

void Llama::set_compute(const ComputeOptions& compute) {
  weights_->compute = compute;
  if (compute.precision == Precision::kTf32) {
    at::globalContext().setAllowTF32CuBLAS(true);
  }
}

const ComputeOptions& Llama::compute() const { return weights_->compute; }

ForwardResult Llama::forward(const Packed& tokens, const RoutingOptions& routing,
                             const OnFeedForward& on_feed_forward) const {
  const ModelConfig& config = weights_->config;
  if (config.sliding_window > 0) {
    check_window(config.sliding_window, tokens);
  }
  MOE_CHECK(!tokens.output_rows.defined() || (!at::GradMode::is_enabled() && !on_feed_forward));
  const bool can_recompute =
      at::GradMode::is_enabled() && tokens.caches.empty() && !on_feed_forward;
  const Recompute recompute = can_recompute ? weights_->compute.recompute : Recompute::kNone;
  const auto pass = std::make_shared<const Pass>(config, weights_->compute, tokens, routing,
                                                 weights_->parallel, device());
  ForwardResult result;
  const auto run_layer = [&](int64_t index, const Tensor& input) {
    const Layer& layer = weights_->layers[index];
    if (recompute == Recompute::kLayer) {
      return recomputed_block(input, layer, pass, index, /*with_attention=*/true);
    }
    if (recompute == Recompute::kFeedForward) {
      const Tensor sum = input + attention_block(input, layer, *pass, index);
      return recomputed_block(sum, layer, pass, index, /*with_attention=*/false);
    }
    const PostAttention after = after_attention(input, layer, *pass, index);
    if (on_feed_forward) {
      on_feed_forward(index, kernels::rms_norm(after.x, layer.post_norm, config.rms_norm_eps));
    }
    return feed_forward_block(after, layer, *pass, nullptr);
  };
  WeightShards* shards = weights_->shards.get();
  Tensor x = embed(weights_->embedding, tokens.ids.to(device()), shards);
  for (int64_t index = 0; index < config.layers; ++index) {
    set_layer(weights_->parallel, index);
    if (shards != nullptr) {
      x = shards->enter(layer_unit(index), x, unit_after(index, config));
    }
    FeedForwardOutput out = run_layer(index, x);
    if (shards != nullptr) {
      shards->leave(layer_unit(index), layer_outputs(out),
                    index > 0 ? static_cast<int64_t>(layer_unit(index - 1)) : -1);
    }
    x = out.x;
    if (weights_->layers[index].router.defined()) {
      result.losses += out.losses;
      if (out.losses.balance.scores.defined()) {
        result.balance.push_back(out.losses.balance);
      }
      result.counters.push_back(std::move(out.counters));
      if (routing.count_tokens) {
        result.token_rows.push_back(std::move(out.token_rows));
      }
    }
  }
  set_layer(weights_->parallel, -1);
  for (size_t sequence = 0; sequence < tokens.caches.size(); ++sequence) {
    tokens.caches[sequence]->add(tokens.lengths[sequence]);
  }
  if (tokens.output_rows.defined() && weights_->layers.back().router.defined()) {
    x = x.index_select(0, pass->tokens.output_rows);
  }
  result.hidden = kernels::rms_norm(x, weights_->norm, config.rms_norm_eps);
  return result;
}

Tensor Llama::head(const Tensor& hidden) const {
  Tensor logits;
  with_head([&](const Tensor& weight) {
    logits = kernels::linear_to_f32(hidden.to(product_type()), weight);
  });
  return logits;
}

void Llama::with_head(const std::function<void(const Tensor& weight)>& body) const {
  const bool is_tied = !weights_->head.defined();
  const Tensor& weight = is_tied ? weights_->embedding : weights_->head;
  WeightShards* shards = weights_->shards.get();
  if (shards == nullptr) {
    body(weight);
    return;
  }
  const size_t unit = head_unit(config());
  shards->gather(unit);
  if (at::GradMode::is_enabled()) {
    shards->start(layer_unit(config().layers - 1));  // backward begins with this layer
  }
  body(weight);
  if (at::GradMode::is_enabled() && !is_tied) {  // a tied head is reduced with the embedding
    shards->reduce_gradients(unit);
  }
  shards->release(unit);
}

bool Llama::is_sharded() const { return weights_->shards != nullptr; }

void Llama::finish_backward() const {
  if (weights_->shards) {
    weights_->shards->finish_backward();
  }
}

Tensor Llama::gathered(const NamedParameter& parameter) const {
  return parameter.shard.defined() ? weights_->shards->gather_values(parameter.tensor)
                                   : parameter.tensor.detach();
}

at::ScalarType Llama::product_type() const { return activation_type(weights_->compute); }

std::vector<NamedParameter> Llama::parameters() const {
  MOE_CHECK(weights_->storage == Storage::kF32, "parameters of a model for inference");
  std::vector<NamedParameter> all, adapters;  // adapters of a layer follow its weights
  size_t unit = kEmbeddingUnit;
  for (const WeightSlot& slot : weights_->slots()) {
    if (unit != slot.unit) {
      std::ranges::move(adapters, std::back_inserter(all));
      adapters.clear();
      unit = slot.unit;
    }
    const bool is_expert = slot.kind == WeightSlot::Kind::kExperts;
    if (!slot.name.empty()) {
      all.push_back({slot.name, *slot.tensor, is_expert, slot.kind == WeightSlot::Kind::kDense});
      const auto* sharded = weights_->shards ? weights_->shards->find(*slot.tensor) : nullptr;
      if (sharded != nullptr) {
        all.back().shard = sharded->shard;
        all.back().shard_begin = sharded->part.begin;
      }
    }
    if (slot.adapter != nullptr && slot.adapter->defined()) {
      adapters.push_back({slot.name + ".lora_a", slot.adapter->a, is_expert});
      adapters.push_back({slot.name + ".lora_b", slot.adapter->b, is_expert});
    }
  }
  return all;
}

void Llama::require_gradients() {
  for (auto& parameter : parameters()) {
    parameter.tensor.requires_grad_(true);
  }
}

}  // namespace moe::model
