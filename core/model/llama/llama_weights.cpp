#include "core/model/llama/llama_weights.h"

#include "core/base/error.h"

namespace moe::model {

using at::Tensor;

namespace {

void check_layout(const ModelConfig& config, const distributed::Layout& layout) {
  MOE_CHECK(layout.group() == 1 || (config.moe && layout.experts == config.moe->experts &&
                                    layout.experts % layout.group() == 0),
            "experts of {} processes", layout.group());
}

Layer empty_layer(const ModelConfig& config, int64_t index, int64_t processes,
                  const at::TensorOptions& options, const at::TensorOptions& matrix) {
  const bool is_moe = config.is_moe_layer(index);
  const int64_t width = config.hidden_size;
  const int64_t experts = is_moe ? config.moe->experts : 1;
  const int64_t inner = is_moe ? config.moe->expert_width : config.intermediate_size;
  Layer layer;
  layer.input_norm = at::empty({width}, options);
  layer.post_norm = at::empty({width}, options);
  layer.attention.qkv =
      at::empty({(config.heads + 2 * config.kv_heads) * config.head_dim, width}, matrix);
  if (config.qkv_bias) {
    layer.attention.bias = at::empty({layer.attention.qkv.size(0)}, options);
  }
  layer.attention.output = at::empty({width, config.heads * config.head_dim}, matrix);
  if (is_moe) {
    layer.router = at::empty({experts, width}, options);
  }
  const int64_t local_experts = is_moe ? experts / processes : 1;
  layer.gate_up = at::empty({local_experts, 2 * inner, width}, matrix);
  layer.down = at::empty({local_experts, width, inner}, matrix);
  return layer;
}

}  // namespace

std::vector<AdaptedWeight> adapted_weights(Layer& layer) {
  AttentionWeights& attention = layer.attention;
  return {{"self_attn.qkv", "attention", &attention.qkv, &attention.qkv_adapter},
          {"self_attn.o_proj", "attention", &attention.output, &attention.output_adapter},
          {"mlp.gate_up", "ffn", &layer.gate_up, &layer.gate_up_adapter},
          {"mlp.down", "ffn", &layer.down, &layer.down_adapter}};
}

Llama::Weights::Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
                        at::Device device, at::ScalarType matrices)
    : config(model_config), parallel(expert_parallel) {
  check_layout(config, parallel.layout);
  const at::TensorOptions options(device), matrix = options.dtype(matrices);
  embedding = at::empty({config.vocab_size, config.hidden_size}, matrix);
  norm = at::empty({config.hidden_size}, options);
  if (!config.tie_word_embeddings) {
    head = at::empty({config.vocab_size, config.hidden_size}, matrix);
  }
  for (int64_t index = 0; index < config.layers; ++index) {
    layers.push_back(empty_layer(config, index, parallel.size(), options, matrix));
  }
}

std::map<std::string, Tensor> Llama::Weights::stored_views(FolderForm form) const {
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

void Llama::Weights::add_attention_views(int64_t index,
                                         std::map<std::string, Tensor>& views) const {
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

void Llama::Weights::add_feed_forward_views(int64_t index, const MoeNames& names,
                                            std::map<std::string, Tensor>& views) const {
  const Layer& layer = layers[index];
  const bool is_moe = layer.router.defined();
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const MoeNames parts = is_moe ? names : moe_names(FolderForm::kMoe);
  if (is_moe) {
    views[prefix + names.router] = layer.router.detach();
  }
  const int64_t inner = layer.down.size(2);
  const int64_t first = parallel.ep_rank() * layer.down.size(0);
  for (int64_t expert = 0; expert < layer.down.size(0); ++expert) {
    const std::string mlp =
        prefix + (is_moe ? fmt::format("{}{}", names.experts, first + expert) : std::string("mlp"));
    const Tensor gate_up = layer.gate_up.detach()[expert];
    views[mlp + parts.gate] = gate_up.narrow(0, 0, inner);
    views[mlp + parts.up] = gate_up.narrow(0, inner, inner);
    views[mlp + parts.down] = layer.down.detach()[expert];
  }
}

}  // namespace moe::model
