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

int64_t qkv_rows(const ModelConfig& config) {
  return (config.heads + 2 * config.kv_heads) * config.head_dim;
}

// A layer without its matrices.
Layer empty_layer(const ModelConfig& config, int64_t index, const at::TensorOptions& options) {
  const bool is_moe = config.is_moe_layer(index);
  const int64_t width = config.hidden_size;
  Layer layer;
  layer.input_norm = at::empty({width}, options);
  layer.post_norm = at::empty({width}, options);
  if (config.qkv_bias) {
    layer.attention.bias = at::empty({qkv_rows(config)}, options);
  }
  if (config.qk_norm) {
    layer.attention.query_norm = at::empty({config.head_dim}, options);
    layer.attention.key_norm = at::empty({config.head_dim}, options);
  }
  if (is_moe) {
    layer.router = at::empty({config.moe->experts, width}, options);
    if (config.moe->router.bias_rate) {
      layer.router_bias = at::zeros({config.moe->experts}, options);
    }
  }
  if (is_moe && config.moe->shared_expert_width > 0) {
    layer.shared_expert.gate = at::empty({1, width}, options);
  }
  return layer;
}

// The tensors of a weight by their names; `rows` are those of each block of one of its matrices.
void add_blocks(const kernels::Weight& weight, const BlockNames& names, at::IntArrayRef rows,
                std::map<std::string, Tensor>& views) {
  if (weight.is_one_tensor() && !weight.tensor.defined()) {
    return;
  }
  const kernels::Weight detached =
      weight.is_one_tensor() ? kernels::Weight(weight.tensor.detach()) : weight;
  for (size_t matrix = 0; matrix < names.size(); ++matrix) {
    kernels::RowBlocks blocks = detached.matrix(static_cast<int64_t>(matrix));
    if (weight.is_one_tensor()) {
      blocks = blocks.front().split_with_sizes(rows, 0);
    }
    for (size_t block = 0; block < blocks.size(); ++block) {
      views[names[matrix].at(block)] = blocks[block];
    }
  }
}

}  // namespace

std::vector<AdaptedWeight> adapted_weights(Layer& layer) {
  AttentionWeights& attention = layer.attention;
  SharedExpert& shared = layer.shared_expert;
  const bool is_moe = layer.router.defined();
  std::vector<AdaptedWeight> all = {
      {"self_attn.qkv", "attention", &attention.qkv.tensor, &attention.qkv_adapter},
      {"self_attn.o_proj", "attention", &attention.output.tensor, &attention.output_adapter},
      {"mlp.gate_up", "ffn", &layer.gate_up.tensor, &layer.gate_up_adapter, is_moe},
      {"mlp.down", "ffn", &layer.down.tensor, &layer.down_adapter, is_moe}};
  if (shared.is_there()) {
    all.push_back(
        {"mlp.shared_expert.gate_up", "ffn", &shared.gate_up.tensor, &shared.gate_up_adapter});
    all.push_back({"mlp.shared_expert.down", "ffn", &shared.down.tensor, &shared.down_adapter});
  }
  return all;
}

Llama::Weights::Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
                        at::Device device, distributed::Comm* sharded_over)
    : Weights(WithoutMatrices(), model_config, expert_parallel, device) {
  if (sharded_over != nullptr) {
    shards =
        std::make_unique<WeightShards>(*sharded_over, device, unit_of_layer(config.layers) + 1);
  }
  make_matrices(moe_names(FolderForm::kMoe),
                [](const BlockNames& /*names*/) { return at::kFloat; });
}

Llama::Weights::Weights(WithoutMatrices /*tag*/, const ModelConfig& model_config,
                        const ExpertParallel& expert_parallel, at::Device device)
    : config(model_config), parallel(expert_parallel) {
  check_layout(config, parallel.layout);
  const at::TensorOptions options(device);
  norm = at::empty({config.hidden_size}, options);
  for (int64_t index = 0; index < config.layers; ++index) {
    layers.push_back(empty_layer(config, index, options));
  }
}

void Llama::Weights::make_matrices(const MoeNames& names, const TypeOfMatrix& type_of) {
  const int64_t width = config.hidden_size;
  const auto make = [&](at::IntArrayRef shape, const BlockNames& blocks) {
    return at::empty(shape, norm.options().dtype(type_of(blocks)));
  };
  const auto make_dense = [&](size_t unit, at::IntArrayRef shape, const BlockNames& blocks) {
    return shards ? shards->add(unit, shape) : make(shape, blocks);
  };
  embedding =
      make_dense(kEmbeddingUnit, {config.vocab_size, width}, {{"model.embed_tokens.weight"}});
  if (!config.tie_word_embeddings) {
    head = make_dense(head_unit(config), {config.vocab_size, width}, {{"lm_head.weight"}});
  }
  for (int64_t index = 0; index < config.layers; ++index) {
    const bool is_moe = config.is_moe_layer(index);
    const int64_t experts = is_moe ? config.moe->experts / parallel.size() : 1;
    const int64_t inner = is_moe ? config.moe->expert_width : config.intermediate_size;
    const LayerNames all = layer_names(index, names);
    Layer& layer = layers[index];
    const size_t unit = unit_of_layer(index);
    layer.attention.qkv = make_dense(unit, {qkv_rows(config), width}, all.qkv);
    layer.attention.output = make_dense(unit, {width, config.heads * config.head_dim}, all.output);
    const std::vector<int64_t> gate_up{experts, 2 * inner, width}, down{experts, width, inner};
    layer.gate_up = is_moe ? make(gate_up, all.gate_up) : make_dense(unit, gate_up, all.gate_up);
    layer.down = is_moe ? make(down, all.down) : make_dense(unit, down, all.down);
    if (SharedExpert& shared = layer.shared_expert; shared.is_there()) {
      const int64_t shared_inner = config.moe->shared_expert_width;
      shared.gate_up = make_dense(unit, {1, 2 * shared_inner, width}, all.shared_gate_up);
      shared.down = make_dense(unit, {1, width, shared_inner}, all.shared_down);
    }
  }
}

LayerNames Llama::Weights::layer_names(int64_t index, const MoeNames& names) const {
  const bool is_moe = config.is_moe_layer(index);
  const MoeNames parts = is_moe ? names : moe_names(FolderForm::kMoe);
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::string attention = prefix + "self_attn.";
  LayerNames all;
  all.qkv = {
      {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}};
  all.output = {{attention + "o_proj.weight"}};
  const int64_t experts = is_moe ? config.moe->experts / parallel.size() : 1;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t number = parallel.ep_rank() * experts + expert;
    const std::string mlp =
        prefix + (is_moe ? fmt::format("{}{}", names.experts, number) : std::string("mlp"));
    all.gate_up.push_back({mlp + parts.gate, mlp + parts.up});
    all.down.push_back({mlp + parts.down});
  }
  if (is_moe && config.moe->shared_expert_width > 0) {
    const std::string shared = prefix + kSharedExpert;
    all.shared_gate_up = {{shared + parts.gate, shared + parts.up}};
    all.shared_down = {{shared + parts.down}};
  }
  return all;
}

std::map<std::string, Tensor> Llama::Weights::stored_views(FolderForm form) const {
  std::map<std::string, Tensor> views{{"model.norm.weight", norm.detach()}};
  for (int64_t index = 0; index < config.layers; ++index) {
    add_vector_views(index, moe_names(form), views);
  }
  for (const auto& [weight, names, rows] : stored_matrices(moe_names(form))) {
    if (!shards || shards->find(weight.tensor) == nullptr) {
      add_blocks(weight, names, rows, views);
    }
  }
  return views;
}

void Llama::Weights::gather_in_bf16() {
  for (size_t unit = kEmbeddingUnit + 1; unit <= unit_of_layer(config.layers); ++unit) {
    shards->gather_in_bf16(unit);
  }
}

std::map<std::string, StoredRange> Llama::Weights::sharded_ranges(FolderForm form) const {
  std::map<std::string, StoredRange> ranges;
  for (const auto& [weight, names, rows] : stored_matrices(moe_names(form))) {
    const ShardedWeight* sharded = shards ? shards->find(weight.tensor) : nullptr;
    if (sharded == nullptr) {
      continue;
    }
    int64_t begin = 0;  // it is one matrix
    for (size_t block = 0; block < rows.size(); ++block) {
      const int64_t count = rows[block] * weight.tensor.size(-1);
      ranges[names.front().at(block)] = {sharded, begin, count};
      begin += count;
    }
  }
  return ranges;
}

void Llama::Weights::add_vector_views(int64_t index, const MoeNames& names,
                                      std::map<std::string, Tensor>& views) const {
  const Layer& layer = layers[index];
  const std::string prefix = fmt::format("model.layers.{}.", index);
  views[prefix + "input_layernorm.weight"] = layer.input_norm.detach();
  views[prefix + "post_attention_layernorm.weight"] = layer.post_norm.detach();
  if (layer.attention.query_norm.defined()) {
    views[prefix + "self_attn.q_norm.weight"] = layer.attention.query_norm.detach();
    views[prefix + "self_attn.k_norm.weight"] = layer.attention.key_norm.detach();
  }
  if (layer.router.defined()) {
    views[prefix + names.router] = layer.router.detach();
  }
  if (layer.router_bias.defined()) {
    views[prefix + kRouterBias] = layer.router_bias;
  }
  if (layer.shared_expert.is_there()) {
    views[prefix + kSharedExpertGate] = layer.shared_expert.gate.detach();
  }
  if (layer.attention.bias.defined()) {
    const int64_t queries = config.heads * config.head_dim;
    const int64_t keys = config.kv_heads * config.head_dim;
    const Tensor bias = layer.attention.bias.detach();
    views[prefix + "self_attn.q_proj.bias"] = bias.narrow(0, 0, queries);
    views[prefix + "self_attn.k_proj.bias"] = bias.narrow(0, queries, keys);
    views[prefix + "self_attn.v_proj.bias"] = bias.narrow(0, queries + keys, keys);
  }
}

std::vector<StoredMatrices> Llama::Weights::stored_matrices(const MoeNames& names) const {
  const int64_t width = config.hidden_size, vocabulary = config.vocab_size;
  const int64_t queries = config.heads * config.head_dim, keys = config.kv_heads * config.head_dim;
  std::vector<StoredMatrices> all{{embedding, {{"model.embed_tokens.weight"}}, {vocabulary}}};
  if (head.defined()) {
    all.push_back({head, {{"lm_head.weight"}}, {vocabulary}});
  }
  for (int64_t index = 0; index < config.layers; ++index) {
    const Layer& layer = layers[index];
    const LayerNames of_layer = layer_names(index, names);
    const int64_t inner =
        config.is_moe_layer(index) ? config.moe->expert_width : config.intermediate_size;
    all.push_back({layer.attention.qkv, of_layer.qkv, {queries, keys, keys}});
    all.push_back({layer.attention.output, of_layer.output, {width}});
    all.push_back({layer.gate_up, of_layer.gate_up, {inner, inner}});
    all.push_back({layer.down, of_layer.down, {width}});
    if (layer.shared_expert.is_there()) {
      const int64_t shared = config.moe->shared_expert_width;
      all.push_back({layer.shared_expert.gate_up, of_layer.shared_gate_up, {shared, shared}});
      all.push_back({layer.shared_expert.down, of_layer.shared_down, {width}});
    }
  }
  return all;
}

}  // namespace moe::model
