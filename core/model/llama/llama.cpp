// The forward pass, and what one can ask of a model in memory.

#include "core/model/llama/llama.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model/llama/llama_weights.h"
#include "core/model/llama/recompute.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"

namespace moe::model {

using at::Tensor;

namespace {

at::ScalarType activation_type(const ComputeOptions& compute) {
  return compute.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

// What all layers of one forward read. It lives as long as a backward may need it.
struct Pass {
  Pass(const ModelConfig& model, const ComputeOptions& compute, const Packed& tokens,
       const RoutingOptions& options, const ExpertParallel& parallel)
      : config(model),
        type(activation_type(compute)),
        lengths(tokens.lengths),
        continues(tokens.continues),
        caches(tokens.caches),
        output_rows(tokens.output_rows),
        routing(options),
        spread(tokens.ids.size(0), options.ep_ranks, parallel,
               options.wants_sequence_balance ? static_cast<int64_t>(lengths.size()) : 0),
        gate_scale(options.gate_scale.value_or(model.moe ? model.moe->gate_scale : 1.0)) {
    spread.local.wants_z_loss = options.wants_z_loss;
    if (options.wants_sequence_balance) {
      number_sequences();
    }
  }

  // Says of each token which sequence it is of.
  void number_sequences() {
    auto& sequence = spread.local.sequence.emplace();
    for (size_t number = 0; number < lengths.size(); ++number) {
      sequence.insert(sequence.end(), static_cast<size_t>(lengths[number]),
                      static_cast<int64_t>(number));
    }
  }

  // Makes the tables of attention on a GPU, unless sequences that continue others need the
  // operations of attention.cpp: in training, or in a type that the flash kernel does not take.
  void make_tables(at::Device device) {
    const bool shares = !continues.empty();
    if (device.is_cuda() &&
        (!shares || (!at::GradMode::is_enabled() && fits_flash(type, config)))) {
      if (auto made = pack_tables(lengths, continues, config, device)) {
        tables = std::make_shared<const PackTables>(std::move(*made));
      }
    }
  }

  // Reserves memory for the new tokens in the caches, and makes the rotations of all layers.
  void prepare_caches(at::Device device) {
    MOE_CHECK(caches.size() == lengths.size() && continues.empty());
    std::vector<int64_t> starts;
    for (size_t i = 0; i < caches.size(); ++i) {
      starts.push_back(caches[i]->length());
      caches[i]->reserve(lengths[i]);
    }
    if (device.is_cpu()) {
      rotations = rotations_at(lengths, starts, config);
    }
  }

  // What a dense last layer goes on with behind its attention: of all [T, ..] the rows that are
  // asked for. A mixture routes all tokens, which may compete for its experts.
  Tensor rows_behind_attention(const Tensor& all, const Layer& layer, int64_t index) const {
    const bool selects =
        output_rows.defined() && index + 1 == config.layers && !layer.router.defined();
    return selects ? all.index_select(0, output_rows) : all;
  }

  Tensor norm(const Tensor& x, const Tensor& weight) const {
    return type == at::kBFloat16 ? kernels::rms_norm_to_bf16(x, weight, config.rms_norm_eps)
                                 : kernels::rms_norm(x, weight, config.rms_norm_eps);
  }

  const ModelConfig& config;
  at::ScalarType type;  // of what products take and give
  std::vector<int64_t> lengths, continues;
  std::shared_ptr<const PackTables> tables;
  std::vector<KvCache*> caches;  // one a sequence, or none
  Tensor output_rows;            // [N] i64 on the model's device, or undefined
  RopeTable rotations;           // [T, A], with caches on a CPU
  // Whether the residual stream may be added to where it lies: for inference on the CPU, where no
  // backward asks for it again.
  bool adds_in_place = false;
  RoutingOptions routing;
  TokenSpread spread;
  double gate_scale;
};

// A rank without tokens attends to nothing, but its backward must reach the same all-to-alls as
// that of the other ranks, so it multiplies no rows by every weight.
Tensor attention_without_tokens(const Tensor& x, const Layer& layer, const Pass& pass) {
  const AttentionWeights& attention = layer.attention;
  const Tensor qkv = project_qkv(pass.norm(x, layer.input_norm), attention, pass.config);
  return adapted_linear(qkv.narrow(1, 0, attention.output.inner()), attention.output, {},
                        attention.output_adapter);
}

// Every token's attention [T, H A] in layer `index`, before the last product.
Tensor attended(const Tensor& x, const Layer& layer, const Pass& pass, int64_t index) {
  const Tensor normed = pass.norm(x, layer.input_norm);
  if (pass.caches.empty()) {
    return attended_tokens(normed, layer.attention, pass.config,
                           {pass.lengths, pass.continues, pass.tables.get()});
  }
  return attended_tokens(normed, layer.attention, pass.config, pass.lengths, pass.caches, index,
                         pass.rotations);
}

// x [T, D] f32, the residual stream -> what the attention of layer `index` adds to it, [T, D], or
// to the rows that it goes on with.
Tensor attention_half(const Tensor& x, const Layer& layer, const Pass& pass, int64_t index) {
  if (x.size(0) == 0) {
    return attention_without_tokens(x, layer, pass);
  }
  const Tensor rows = pass.rows_behind_attention(attended(x, layer, pass, index), layer, index);
  return adapted_linear(rows, layer.attention.output, {}, layer.attention.output_adapter);
}

// Between the halves of a layer.
struct Middle {
  Tensor x;       // [T, D] f32, the residual stream after the attention
  Tensor normed;  // [T, D], what the feed-forward half takes
};

// x is given away where nobody needs it any more (Pass::adds_in_place).
Middle after_attention(const Tensor& x, const Layer& layer, const Pass& pass, int64_t index) {
  if (pass.adds_in_place && x.size(0) > 0 && !layer.attention.output_adapter.defined()) {
    const Tensor rows = pass.rows_behind_attention(attended(x, layer, pass, index), layer, index);
    Tensor sum = pass.rows_behind_attention(x, layer, index);
    kernels::add_linear(sum, rows, layer.attention.output);
    return {sum, pass.norm(sum, layer.post_norm)};
  }
  const Tensor added = attention_half(x, layer, pass, index);
  auto [sum, normed] = kernels::rms_norm_of_sum(pass.rows_behind_attention(x, layer, index), added,
                                                layer.post_norm, pass.config.rms_norm_eps,
                                                /*to_bf16=*/pass.type == at::kBFloat16);
  return {std::move(sum), std::move(normed)};
}

// For the sentence of an exchange that fails.
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

FeedForwardOutput feed_forward_half(const Middle& middle, const Layer& layer, const Pass& pass,
                                    std::optional<route::Routing>* decided) {
  const auto& [x, normed] = middle;
  if (!layer.router.defined() && pass.adds_in_place && !layer.gate_up_adapter.defined() &&
      !layer.down_adapter.defined()) {
    Tensor sum = x;
    kernels::add_swiglu(sum, normed, layer.gate_up, layer.down);
    return {sum};
  }
  if (!layer.router.defined()) {
    return {x + adapted_swiglu(normed, layer.gate_up, layer.down, layer.gate_up_adapter,
                               layer.down_adapter, {x.size(0)})};
  }
  const Experts experts{layer.gate_up, layer.down, layer.gate_up_adapter, layer.down_adapter};
  // The residual comes last, after a shared expert.
  const bool has_shared = layer.shared_expert.is_there();
  MoeOutput out = moe_forward(
      normed, {layer.router, pass.routing.router, layer.router_bias}, experts, pass.spread,
      {pass.gate_scale, pass.routing.count_tokens, decided, has_shared ? Tensor() : x});
  if (has_shared) {
    out.y = x + (out.y + layer.shared_expert.run(normed));
  }
  return {out.y, out.losses, std::move(out.counters), std::move(out.token_rows)};
}

// The feed-forward half, or the whole layer, keeping x alone. Weights are held by the model, which
// outlives its backward; tokens go the second time where they went the first.
FeedForwardOutput recomputed_half(const Tensor& x, const Layer& layer,
                                  const std::shared_ptr<const Pass>& pass, int64_t index,
                                  bool with_attention) {
  const auto decided = std::make_shared<std::optional<route::Routing>>();
  const auto first = std::make_shared<FeedForwardOutput>();
  const auto tensors = recomputed(
      [&layer, pass, index, with_attention, decided, first](const Tensor& input) {
        const bool again = decided->has_value();
        set_layer(pass->spread.parallel, index);
        const Middle middle = with_attention ? after_attention(input, layer, *pass, index)
                                             : Middle{input, pass->norm(input, layer.post_norm)};
        FeedForwardOutput out = feed_forward_half(middle, layer, *pass, decided.get());
        if (!again) {
          first->counters = std::move(out.counters);
          first->token_rows = std::move(out.token_rows);
        }
        std::vector<Tensor> results{out.x};
        for (const auto loss : route::kAllLosses) {
          results.push_back(out.losses.*loss);
        }
        return results;
      },
      x);
  FeedForwardOutput out{tensors[0], {}, std::move(first->counters), std::move(first->token_rows)};
  for (size_t number = 0; number < route::kAllLosses.size(); ++number) {
    out.losses.*route::kAllLosses[number] = tensors[number + 1];
  }
  return out;
}

// What may leave a layer with a gradient.
std::vector<Tensor*> outputs_of(FeedForwardOutput& out) {
  std::vector<Tensor*> outputs{&out.x};
  for (const auto loss : route::kAllLosses) {
    outputs.push_back(&(out.losses.*loss));
  }
  return outputs;
}

// The unit of sharded weights that a forward needs after a layer; -1: none, as only a forward that
// is for a backward is sure to go on to the head.
int64_t unit_after(int64_t layer, const ModelConfig& config) {
  if (layer + 1 < config.layers) {
    return static_cast<int64_t>(unit_of_layer(layer + 1));
  }
  return at::GradMode::is_enabled() ? static_cast<int64_t>(head_unit(config)) : -1;
}

// -> [T, D] f32
Tensor embedded(const Tensor& embedding, const Tensor& ids, WeightShards* shards) {
  if (shards == nullptr) {
    return at::embedding(embedding, ids).to(at::kFloat);
  }
  shards->gather(kEmbeddingUnit);
  shards->start(unit_of_layer(0));
  shards->expect_gradients(kEmbeddingUnit);
  const Tensor x = at::embedding(embedding, ids).to(at::kFloat);
  shards->release(kEmbeddingUnit);
  return x;
}

// Returns the length of the longest sequence, with the tokens of its cache and of the sequence that
// it continues.
int64_t longest_sequence(const Packed& tokens) {
  std::vector<int64_t> ends;
  for (size_t sequence = 0; sequence < tokens.lengths.size(); ++sequence) {
    const int64_t before = tokens.continues.empty() ? -1 : tokens.continues[sequence];
    const int64_t kept = tokens.caches.empty() ? 0 : tokens.caches[sequence]->length();
    ends.push_back((before < 0 ? kept : ends[static_cast<size_t>(before)]) +
                   tokens.lengths[sequence]);
  }
  return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
}

// Adds an adapter to its weight, or to the part of it that is here.
void merge(const AdaptedWeight& adapted, const WeightShards* shards) {
  const auto* sharded = shards == nullptr ? nullptr : shards->find(*adapted.weight);
  if (sharded == nullptr) {
    adapted.weight->copy_(merged_weight(*adapted.weight, *adapted.adapter));
  } else if (adapted.adapter->defined()) {
    const Adapter& adapter = *adapted.adapter;
    const Tensor product = at::matmul(adapter.b, adapter.a).view({-1});
    const auto& [length, begin, end] = sharded->part;
    sharded->shard.copy_(sharded->shard + product.narrow(0, begin, end - begin) * adapter.scale);
  }
  *adapted.adapter = {};
}

// Up to its window a windowed layer sees all of a sequence, as attention here does.
void check_window(int64_t window, int64_t longest) {
  if (longest > window) {
    throw UserError(
        "a text of {} tokens is longer than the {} of sliding_window in config.json, and windowed "
        "attention is not supported: give shorter texts, or set sliding_window to null if the "
        "model was trained without one",
        longest, window);
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

Llama Llama::clone() const { return clone_to(device()); }

Llama Llama::clone_to(at::Device device) const {
  const at::NoGradGuard no_gradients;
  Llama copy;
  const auto& shards = weights_->shards;
  copy.weights_ = std::make_unique<Weights>(weights_->config, weights_->parallel, device,
                                            shards ? &shards->ranks() : nullptr);
  copy.weights_->compute = weights_->compute;
  copy.add_lora(weights_->lora, /*seed=*/0);
  copy.set_router_bias(!router_biases().empty());
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
  for (size_t index = 0; index < weights_->layers.size(); ++index) {
    const auto to = adapted_weights(copy.weights_->layers[index]);
    const auto own = adapted_weights(weights_->layers[index]);
    for (size_t number = 0; number < own.size(); ++number) {
      if (own[number].adapter->defined()) {
        to[number].adapter->a.copy_(own[number].adapter->a);
        to[number].adapter->b.copy_(own[number].adapter->b);
      }
    }
  }
  return copy;
}

Llama Llama::merged() const {
  const at::NoGradGuard no_gradients;
  Llama copy = clone();
  for (auto& layer : copy.weights_->layers) {
    for (const auto& adapted : adapted_weights(layer)) {
      merge(adapted, copy.weights_->shards.get());
    }
  }
  copy.weights_->lora = {};
  return copy;
}

void Llama::add_lora(const LoraSettings& settings, uint64_t seed) {
  MOE_CHECK(weights_->storage == Storage::kF32 || settings.rank == 0, "adapters for inference");
  weights_->lora = settings;
  uint64_t number = 0;
  for (auto& layer : weights_->layers) {
    for (const auto& adapted : adapted_weights(layer)) {
      ++number;
      if (settings.is_on(adapted.part)) {
        const uint64_t own_seed = seed * 0x9e3779b97f4a7c15ULL + number;
        const ExpertRange range = adapted.is_expert
                                      ? ExpertRange{layout().first_expert(), layer.router.size(0)}
                                      : ExpertRange{};
        *adapted.adapter =
            make_adapter(*adapted.weight, settings.rank, settings.scale(), own_seed, range);
      }
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
  if (weights_->storage == Storage::kStored && device().is_cpu()) {
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
  weights_->parallel.overlap_all_to_all = group != nullptr && !group->device().is_cpu();
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
    check_window(config.sliding_window, longest_sequence(tokens));
  }
  MOE_CHECK(!tokens.output_rows.defined() || (!at::GradMode::is_enabled() && !on_feed_forward));
  const bool keeps_all = !tokens.caches.empty() || on_feed_forward || !at::GradMode::is_enabled();
  const Recompute recompute = keeps_all ? Recompute::kNone : weights_->compute.recompute;
  const auto own =
      std::make_shared<Pass>(config, weights_->compute, tokens, routing, weights_->parallel);
  if (tokens.output_rows.defined()) {
    own->output_rows = tokens.output_rows.to(device());
  }
  own->adds_in_place = device().is_cpu() && !at::GradMode::is_enabled();
  if (!tokens.caches.empty()) {
    own->prepare_caches(device());
  } else {
    own->make_tables(device());
  }
  const std::shared_ptr<const Pass> pass = own;
  ForwardResult result;
  const auto run_layer = [&](int64_t index, const Tensor& input) {
    const Layer& layer = weights_->layers[index];
    if (recompute == Recompute::kLayer) {
      return recomputed_half(input, layer, pass, index, /*with_attention=*/true);
    }
    if (recompute == Recompute::kFeedForward) {
      const Tensor middle = input + attention_half(input, layer, *pass, index);
      return recomputed_half(middle, layer, pass, index, /*with_attention=*/false);
    }
    const Middle middle = after_attention(input, layer, *pass, index);
    if (on_feed_forward) {
      on_feed_forward(index, kernels::rms_norm(middle.x, layer.post_norm, config.rms_norm_eps));
    }
    return feed_forward_half(middle, layer, *pass, nullptr);
  };
  WeightShards* shards = weights_->shards.get();
  Tensor x = embedded(weights_->embedding, tokens.ids.to(device()), shards);
  for (int64_t index = 0; index < config.layers; ++index) {
    set_layer(weights_->parallel, index);
    if (shards != nullptr) {
      x = shards->enter(unit_of_layer(index), x, unit_after(index, config));
    }
    FeedForwardOutput out = run_layer(index, x);
    if (shards != nullptr) {
      shards->leave(unit_of_layer(index), outputs_of(out),
                    index > 0 ? static_cast<int64_t>(unit_of_layer(index - 1)) : -1);
    }
    x = out.x;
    if (weights_->layers[index].router.defined()) {
      result.losses += out.losses;
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
  if (pass->output_rows.defined() && weights_->layers.back().router.defined()) {
    x = x.index_select(0, pass->output_rows);
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
    shards->start(unit_of_layer(config().layers - 1));  // the first of the backward
  }
  body(weight);
  if (at::GradMode::is_enabled() && !is_tied) {  // a tied one gets more from the first layer
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
  return parameter.shard.defined() ? weights_->shards->values_of(parameter.tensor)
                                   : parameter.tensor.detach();
}

at::ScalarType Llama::product_type() const { return activation_type(weights_->compute); }

std::vector<NamedParameter> Llama::parameters() const {
  MOE_CHECK(weights_->storage == Storage::kF32, "parameters of a model for inference");
  constexpr bool is_dense = true;
  std::vector<NamedParameter> all{{"model.embed_tokens", weights_->embedding, false, is_dense}};
  for (size_t index = 0; index < weights_->layers.size(); ++index) {
    const Layer& layer = weights_->layers[index];
    const std::string prefix = fmt::format("model.layers.{}.", index);
    all.push_back({prefix + "input_layernorm", layer.input_norm});
    all.push_back({prefix + "self_attn.qkv", layer.attention.qkv.tensor, false, is_dense});
    if (layer.attention.bias.defined()) {
      all.push_back({prefix + "self_attn.qkv_bias", layer.attention.bias});
    }
    all.push_back({prefix + "self_attn.o_proj", layer.attention.output.tensor, false, is_dense});
    if (layer.attention.query_norm.defined()) {
      all.push_back({prefix + "self_attn.q_norm", layer.attention.query_norm});
      all.push_back({prefix + "self_attn.k_norm", layer.attention.key_norm});
    }
    all.push_back({prefix + "post_attention_layernorm", layer.post_norm});
    if (layer.router.defined()) {
      all.push_back({prefix + "mlp.router", layer.router});
    }
    const bool is_moe = layer.router.defined();
    all.push_back({prefix + "mlp.gate_up", layer.gate_up.tensor, is_moe, !is_moe});
    all.push_back({prefix + "mlp.down", layer.down.tensor, is_moe, !is_moe});
    if (const SharedExpert& shared = layer.shared_expert; shared.is_there()) {
      all.push_back({prefix + "mlp.shared_expert.gate_up", shared.gate_up.tensor, false, is_dense});
      all.push_back({prefix + "mlp.shared_expert.down", shared.down.tensor, false, is_dense});
      all.push_back({prefix + "mlp.shared_expert_gate", shared.gate});
    }
    for (const auto& adapted : adapted_weights(weights_->layers[index])) {
      if (adapted.adapter->defined()) {
        all.push_back({prefix + adapted.name + ".lora_a", adapted.adapter->a, adapted.is_expert});
        all.push_back({prefix + adapted.name + ".lora_b", adapted.adapter->b, adapted.is_expert});
      }
    }
  }
  all.push_back({"model.norm", weights_->norm});
  if (weights_->head.defined()) {
    all.push_back({"lm_head", weights_->head, false, is_dense});
  }
  for (auto& parameter : all) {
    const auto* sharded = weights_->shards ? weights_->shards->find(parameter.tensor) : nullptr;
    if (sharded != nullptr) {
      parameter.shard = sharded->shard;
      parameter.shard_begin = sharded->part.begin;
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
