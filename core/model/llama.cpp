// Weights live in few large tensors (one qkv, one gate_up, one down a layer) so that a layer is few
// matrix products; `stored_views` is the table that ties them to the names and shapes of the
// Hugging Face files, for loading and saving.

#include "core/model/llama.h"

#include <map>

#include "core/base/error.h"
#include "core/model/recompute.h"
#include "core/model/weights.h"
#include "kernels/grouped_swiglu.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

namespace moe::model {

using torch::Tensor;

namespace {

struct Layer {
  Tensor input_norm, post_norm;  // [D]
  AttentionWeights attention;
  Tensor router;   // [E, D], undefined in a dense layer
  Tensor gate_up;  // [E, 2F, D]; a dense layer has E = 1
  Tensor down;     // [E, D, F]
  Adapter gate_up_adapter, down_adapter;
};

// A weight that may have an adapter.
struct AdaptedWeight {
  std::string name;  // within the layer
  std::string part;  // of LoraSettings::on
  Tensor* weight;
  Adapter* adapter;
};

std::vector<AdaptedWeight> adapted_weights(Layer& layer) {
  AttentionWeights& attention = layer.attention;
  return {{"self_attn.qkv", "attention", &attention.qkv, &attention.qkv_adapter},
          {"self_attn.o_proj", "attention", &attention.output, &attention.output_adapter},
          {"mlp.gate_up", "ffn", &layer.gate_up, &layer.gate_up_adapter},
          {"mlp.down", "ffn", &layer.down, &layer.down_adapter}};
}

at::ScalarType scalar_type(io::DType dtype) {
  switch (dtype) {
    case io::DType::kF32:
      return at::kFloat;
    case io::DType::kF16:
      return at::kHalf;
    case io::DType::kBF16:
      return at::kBFloat16;
    default:
      MOE_CHECK(false, "weights of dtype {}", io::dtype_name(dtype));
  }
}

Layer empty_layer(const ModelConfig& config, int64_t index, at::Device device) {
  const at::TensorOptions options(device);
  const bool is_moe = config.is_moe_layer(index);
  const int64_t width = config.hidden_size;
  const int64_t experts = is_moe ? config.moe->experts : 1;
  const int64_t inner = is_moe ? config.moe->expert_width : config.intermediate_size;
  Layer layer;
  layer.input_norm = at::empty({width}, options);
  layer.post_norm = at::empty({width}, options);
  layer.attention.qkv =
      at::empty({(config.heads + 2 * config.kv_heads) * config.head_dim, width}, options);
  if (config.qkv_bias) {
    layer.attention.bias = at::empty({layer.attention.qkv.size(0)}, options);
  }
  layer.attention.output = at::empty({width, config.heads * config.head_dim}, options);
  if (is_moe) {
    layer.router = at::empty({experts, width}, options);
  }
  layer.gate_up = at::empty({experts, 2 * inner, width}, options);
  layer.down = at::empty({experts, width, inner}, options);
  return layer;
}

FolderForm form_of(const ModelConfig& config) {
  return config.moe ? written_form(*config.moe) : FolderForm::kMoe;
}

// What a folder says of a model that is routed so.
ModelConfig config_with(const ModelConfig& model, const RoutingOptions& routing) {
  ModelConfig config = model;
  if (config.moe) {
    config.moe->router = routing.router;
    config.moe->ep_ranks = routing.ep_ranks;
  }
  return config;
}

at::ScalarType activation_type(const ComputeOptions& compute) {
  return compute.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

// What all layers of one forward share. It lives as long as a backward may need it.
struct Pass {
  Pass(const ModelConfig& model,
       const ComputeOptions& compute,
       const Packed& tokens,
       const RoutingOptions& options)
      : config(model),
        type(activation_type(compute)),
        lengths(tokens.lengths),
        continues(tokens.continues),
        routing(options),
        group(route::spread_over_ranks(tokens.ids.size(0), options.ep_ranks)),
        gate_scale(options.gate_scale.value_or(model.moe ? model.moe->gate_scale : 1.0)) {}

  Tensor norm(const Tensor& x, const Tensor& weight) const {
    return kernels::rms_norm(x, weight, config.rms_norm_eps).to(type);
  }

  const ModelConfig& config;
  at::ScalarType type;  // of what products take and give
  std::vector<int64_t> lengths, continues;
  RoutingOptions routing;
  route::RoutingGroup group;
  double gate_scale;
};

// x [T, D] f32, the residual stream, after the attention of a layer.
Tensor attention_half(const Tensor& x, const Layer& layer, const Pass& pass, LayerCache* cache) {
  return x + attention_forward(pass.norm(x, layer.input_norm),
                               layer.attention,
                               pass.config,
                               {pass.lengths, pass.continues},
                               cache);
}

struct FeedForwardOutput {
  Tensor x;  // [T, D] f32, the residual stream after the layer
  route::AuxLosses losses = {};
  route::Counters counters = {};
  Tensor token_rows = {};
};

FeedForwardOutput feed_forward_half(const Tensor& x,
                                    const Layer& layer,
                                    const Pass& pass,
                                    std::optional<route::Routing>* decided) {
  const Tensor normed = pass.norm(x, layer.post_norm);
  if (!layer.router.defined()) {
    return {x + adapted_swiglu(normed,
                               layer.gate_up,
                               layer.down,
                               layer.gate_up_adapter,
                               layer.down_adapter,
                               {x.size(0)})};
  }
  MoeOutput out = moe_forward(
      normed,
      {layer.router, layer.gate_up, layer.down, layer.gate_up_adapter, layer.down_adapter},
      pass.routing.router,
      pass.group,
      pass.gate_scale,
      pass.routing.count_tokens,
      decided);
  return {x + out.y, out.losses, std::move(out.counters), std::move(out.token_rows)};
}

// The feed-forward half, or the whole layer, keeping x alone. Weights are held by the model, which
// outlives its backward; tokens go the second time where they went the first.
FeedForwardOutput recomputed_half(const Tensor& x,
                                  const Layer& layer,
                                  const std::shared_ptr<const Pass>& pass,
                                  bool with_attention) {
  const auto decided = std::make_shared<std::optional<route::Routing>>();
  const auto first = std::make_shared<FeedForwardOutput>();
  const auto tensors = recomputed(
      [&layer, pass, with_attention, decided, first](const Tensor& input) {
        const bool again = decided->has_value();
        const Tensor middle = with_attention ? attention_half(input, layer, *pass, nullptr) : input;
        FeedForwardOutput out = feed_forward_half(middle, layer, *pass, decided.get());
        if (!again) {
          first->counters = std::move(out.counters);
          first->token_rows = std::move(out.token_rows);
        }
        return std::vector<Tensor>{
            out.x, out.losses.load_balance, out.losses.entropy, out.losses.l1};
      },
      x);
  return {tensors[0],
          {tensors[1], tensors[2], tensors[3]},
          std::move(first->counters),
          std::move(first->token_rows)};
}

// A stored tensor where it lies. LibTorch has no read-only tensors; this one is only read from.
Tensor stored_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  void* data = const_cast<std::byte*>(checkpoint.bytes(name).data());
  return at::from_blob(data, info.shape, at::TensorOptions(scalar_type(info.dtype)));
}

}  // namespace

struct Llama::Weights {
  ModelConfig config;
  ComputeOptions compute;
  LoraSettings lora;
  Tensor embedding;  // [V, D]
  Tensor norm;       // [D]
  Tensor head;       // [V, D], undefined when tied
  std::vector<Layer> layers;
  std::map<std::string, Tensor> idle;  // gates of shared experts that are not there: kept, not used

  explicit Weights(const ModelConfig& model_config, at::Device device = at::kCPU)
      : config(model_config) {
    const at::TensorOptions options(device);
    embedding = at::empty({config.vocab_size, config.hidden_size}, options);
    norm = at::empty({config.hidden_size}, options);
    if (!config.tie_word_embeddings) {
      head = at::empty({config.vocab_size, config.hidden_size}, options);
    }
    for (int64_t index = 0; index < config.layers; ++index) {
      layers.push_back(empty_layer(config, index, device));
    }
  }

  // File name -> the part of a weight tensor that holds it, in the names of `form`.
  std::map<std::string, Tensor> stored_views(FolderForm form) const {
    std::map<std::string, Tensor> views{{"model.embed_tokens.weight", embedding.detach()},
                                        {"model.norm.weight", norm.detach()}};
    if (head.defined()) {
      views["lm_head.weight"] = head.detach();
    }
    for (int64_t index = 0; index < config.layers; ++index) {
      add_attention_views(index, views);
      add_feed_forward_views(index, moe_names(form), views);
    }
    return views;
  }

 private:
  void add_attention_views(int64_t index, std::map<std::string, Tensor>& views) const {
    const Layer& layer = layers[index];
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const int64_t query_rows = config.heads * config.head_dim;
    const int64_t key_rows = config.kv_heads * config.head_dim;
    views[prefix + "input_layernorm.weight"] = layer.input_norm.detach();
    views[prefix + "post_attention_layernorm.weight"] = layer.post_norm.detach();
    const auto add = [&](const Tensor& rows, const std::string& kind) {
      views[prefix + "self_attn.q_proj." + kind] = rows.narrow(0, 0, query_rows);
      views[prefix + "self_attn.k_proj." + kind] = rows.narrow(0, query_rows, key_rows);
      views[prefix + "self_attn.v_proj." + kind] = rows.narrow(0, query_rows + key_rows, key_rows);
    };
    add(layer.attention.qkv.detach(), "weight");
    if (layer.attention.bias.defined()) {
      add(layer.attention.bias.detach(), "bias");
    }
    views[prefix + "self_attn.o_proj.weight"] = layer.attention.output.detach();
  }

  void add_feed_forward_views(int64_t index,
                              const MoeNames& names,
                              std::map<std::string, Tensor>& views) const {
    const Layer& layer = layers[index];
    const bool is_moe = layer.router.defined();
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const MoeNames parts = is_moe ? names : moe_names(FolderForm::kMoe);
    if (is_moe) {
      views[prefix + names.router] = layer.router.detach();
    }
    const int64_t inner = layer.down.size(2);
    for (int64_t expert = 0; expert < layer.down.size(0); ++expert) {
      const std::string mlp =
          prefix + (is_moe ? fmt::format("{}{}", names.experts, expert) : std::string("mlp"));
      const Tensor gate_up = layer.gate_up.detach()[expert];
      views[mlp + parts.gate] = gate_up.narrow(0, 0, inner);
      views[mlp + parts.up] = gate_up.narrow(0, inner, inner);
      views[mlp + parts.down] = layer.down.detach()[expert];
    }
  }
};

Llama::Llama() = default;
Llama::~Llama() = default;
Llama::Llama(Llama&&) noexcept = default;
Llama& Llama::operator=(Llama&&) noexcept = default;

Llama Llama::load(const io::Checkpoint& checkpoint) {
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  check_tensors(checkpoint, config);
  Llama model;
  model.weights_ = std::make_unique<Weights>(config);
  for (const auto& [name, view] : model.weights_->stored_views(form_of(config))) {
    view.copy_(stored_tensor(checkpoint, name));
  }
  for (const auto& info : shared_expert_tensors(config)) {
    if (info.elements() > 0 && checkpoint.has(info.name)) {
      model.weights_->idle[info.name] =
          stored_tensor(checkpoint, info.name).to(at::kFloat, false, true);
    }
  }
  return model;
}

Llama Llama::without_weights(const ModelConfig& config) {
  Llama model;
  model.weights_ = std::make_unique<Weights>(config, at::kMeta);
  return model;
}

Llama Llama::clone() const {
  const at::NoGradGuard no_gradients;
  Llama copy;
  copy.weights_ = std::make_unique<Weights>(weights_->config);
  copy.weights_->compute = weights_->compute;
  copy.add_lora(weights_->lora, /*seed=*/0);
  const auto from = parameters();
  const auto to = copy.parameters();
  for (size_t index = 0; index < from.size(); ++index) {
    Tensor(to[index].tensor).copy_(from[index].tensor);
  }
  return copy;
}

Llama Llama::merged() const {
  const at::NoGradGuard no_gradients;
  Llama copy = clone();
  for (auto& layer : copy.weights_->layers) {
    for (const auto& one : adapted_weights(layer)) {
      one.weight->copy_(merged_weight(*one.weight, *one.adapter));
      *one.adapter = {};
    }
  }
  copy.weights_->lora = {};
  return copy;
}

void Llama::add_lora(const LoraSettings& settings, uint64_t seed) {
  weights_->lora = settings;
  uint64_t number = 0;
  for (auto& layer : weights_->layers) {
    for (const auto& one : adapted_weights(layer)) {
      ++number;
      if (settings.is_on(one.part)) {
        const uint64_t own_seed = seed * 0x9e3779b97f4a7c15ULL + number;
        *one.adapter = make_adapter(*one.weight, settings.rank, settings.scale(), own_seed);
      }
    }
  }
}

const ModelConfig& Llama::config() const { return weights_->config; }

RoutingOptions Llama::default_routing() const {
  const auto& moe = weights_->config.moe;
  return moe ? RoutingOptions{moe->router, moe->ep_ranks} : RoutingOptions{};
}

const LoraSettings& Llama::lora() const { return weights_->lora; }

void Llama::set_compute(const ComputeOptions& compute) { weights_->compute = compute; }

ForwardResult Llama::forward(const Packed& tokens,
                             const RoutingOptions& routing,
                             KvCache* cache,
                             const OnFeedForward& on_feed_forward) const {
  const ModelConfig& config = weights_->config;
  if (cache != nullptr) {
    cache->layers.resize(config.layers);
  }
  const bool keeps_all = cache != nullptr || on_feed_forward || !at::GradMode::is_enabled();
  const Recompute recompute = keeps_all ? Recompute::kNone : weights_->compute.recompute;
  const auto pass = std::make_shared<const Pass>(config, weights_->compute, tokens, routing);
  ForwardResult result;
  Tensor x = at::embedding(weights_->embedding, tokens.ids);  // [T, D]
  for (int64_t index = 0; index < config.layers; ++index) {
    const Layer& layer = weights_->layers[index];
    LayerCache* layer_cache = cache == nullptr ? nullptr : &cache->layers[index];
    FeedForwardOutput out;
    if (recompute == Recompute::kLayer) {
      out = recomputed_half(x, layer, pass, /*with_attention=*/true);
    } else {
      x = attention_half(x, layer, *pass, layer_cache);
      if (on_feed_forward) {
        on_feed_forward(index, kernels::rms_norm(x, layer.post_norm, config.rms_norm_eps));
      }
      out = recompute == Recompute::kFeedForward
                ? recomputed_half(x, layer, pass, /*with_attention=*/false)
                : feed_forward_half(x, layer, *pass, nullptr);
    }
    x = out.x;
    if (layer.router.defined()) {
      result.losses += out.losses;
      result.counters.push_back(std::move(out.counters));
      if (routing.count_tokens) {
        result.token_rows.push_back(std::move(out.token_rows));
      }
    }
  }
  result.hidden = kernels::rms_norm(x, weights_->norm, config.rms_norm_eps);
  return result;
}

Tensor Llama::head(const Tensor& hidden) const {
  return kernels::linear_to_f32(hidden.to(product_type()), head_weight());
}

Tensor Llama::head_weight() const {
  return weights_->head.defined() ? weights_->head : weights_->embedding;
}

torch::ScalarType Llama::product_type() const { return activation_type(weights_->compute); }

std::vector<NamedParameter> Llama::parameters() const {
  std::vector<NamedParameter> all{{"model.embed_tokens", weights_->embedding}};
  for (size_t index = 0; index < weights_->layers.size(); ++index) {
    const Layer& layer = weights_->layers[index];
    const std::string prefix = fmt::format("model.layers.{}.", index);
    all.push_back({prefix + "input_layernorm", layer.input_norm});
    all.push_back({prefix + "self_attn.qkv", layer.attention.qkv});
    if (layer.attention.bias.defined()) {
      all.push_back({prefix + "self_attn.qkv_bias", layer.attention.bias});
    }
    all.push_back({prefix + "self_attn.o_proj", layer.attention.output});
    all.push_back({prefix + "post_attention_layernorm", layer.post_norm});
    if (layer.router.defined()) {
      all.push_back({prefix + "mlp.router", layer.router});
    }
    all.push_back({prefix + "mlp.gate_up", layer.gate_up});
    all.push_back({prefix + "mlp.down", layer.down});
    for (const auto& one : adapted_weights(weights_->layers[index])) {
      if (one.adapter->defined()) {
        all.push_back({prefix + one.name + ".lora_a", one.adapter->a});
        all.push_back({prefix + one.name + ".lora_b", one.adapter->b});
      }
    }
  }
  all.push_back({"model.norm", weights_->norm});
  if (weights_->head.defined()) {
    all.push_back({"lm_head", weights_->head});
  }
  return all;
}

void Llama::require_gradients() {
  for (auto& parameter : parameters()) {
    parameter.tensor.requires_grad_(true);
  }
}

std::vector<io::TensorSource> Llama::tensor_sources(const RoutingOptions& routing) const {
  const ModelConfig config = config_with(weights_->config, routing);
  const auto views = weights_->stored_views(form_of(config));
  std::vector<io::TensorSource> sources;
  const auto add = [&](const io::TensorInfo& info, const Tensor& view) {
    sources.push_back({info, [view, info](io::SafetensorsWriter& writer) {
                         const Tensor stored = view.to(scalar_type(info.dtype)).contiguous();
                         writer.write({static_cast<const std::byte*>(stored.const_data_ptr()),
                                       static_cast<size_t>(info.bytes())});
                       }});
  };
  for (const auto& info : expected_tensors(config)) {
    add(info, views.at(info.name));
  }
  for (const auto& info : shared_expert_tensors(config)) {
    const auto idle = weights_->idle.find(info.name);
    add(info, idle != weights_->idle.end() ? idle->second : at::zeros(info.shape));
  }
  return sources;
}

void write_folder(const Llama& model,
                  const RoutingOptions& routing,
                  const io::Checkpoint& parent,
                  const io::StagedFolder& folder,
                  const LossCoefficients& coefficients) {
  constexpr uint64_t kShardBytes = uint64_t{5} << 30;
  ModelConfig config = config_with(model.config(), routing);
  if (config.moe) {
    config.moe->lb_coef = coefficients.load_balance.value_or(config.moe->lb_coef);
    config.moe->entropy_coef = coefficients.entropy.value_or(config.moe->entropy_coef);
    if (coefficients.lambda) {
      config.moe->lambda = coefficients.lambda;
    }
  }
  folder.write_text("config.json", config_json(config, parent.config()).dump(2) + "\n");
  const std::optional<Llama> merged =
      model.lora().rank > 0 ? std::optional(model.merged()) : std::nullopt;
  io::write_tensors(folder.path(), (merged ? *merged : model).tensor_sources(routing), kShardBytes);
  io::copy_tokenizer_files(parent.folder(), folder.path());
}

void save_folder(const Llama& model,
                 const RoutingOptions& routing,
                 const io::Checkpoint& parent,
                 const std::filesystem::path& out,
                 bool force,
                 const LossCoefficients& coefficients) {
  io::StagedFolder folder(out, force);
  write_folder(model, routing, parent, folder, coefficients);
  folder.commit();
}

}  // namespace moe::model
