#include "core/model/llama/llama_weights.h"

#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/io/file.h"
#include "kernels/ops/device.h"

namespace moe::model {
namespace {

using at::Tensor;

constexpr uint64_t kShardBytes = uint64_t{5} << 30;
constexpr const char* kEmbedding = "model.embed_tokens.weight";

std::string layer_prefix(int64_t index) { return fmt::format("model.layers.{}.", index); }

FolderForm written_form(const ModelConfig& config) {
  return config.moe ? written_form(*config.moe) : FolderForm::kMoe;
}

Layer empty_layer(const ModelConfig& config, int64_t index, const at::TensorOptions& options) {
  const int64_t width = config.hidden_size;
  Layer layer;
  layer.input_norm = at::empty({width}, options);
  layer.post_norm = at::empty({width}, options);
  if (config.qkv_bias) {
    layer.attention.bias =
        at::empty({(config.heads + 2 * config.kv_heads) * config.head_dim}, options);
  }
  if (config.qk_norm) {
    layer.attention.query_norm = at::empty({config.head_dim}, options);
    layer.attention.key_norm = at::empty({config.head_dim}, options);
  }
  if (config.is_moe_layer(index)) {
    layer.router = at::empty({config.moe->experts, width}, options);
    if (config.moe->router.bias_rate) {
      layer.router_bias = at::zeros({config.moe->experts}, options);
    }
    if (config.moe->shared_expert_width > 0) {
      layer.shared_expert.gate = at::empty({1, width}, options);
    }
  }
  return layer;
}

// Adds the parts of a weight to `views`; `rows` are those of each block of one of its matrices.
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

ModelConfig routed_config(const ModelConfig& model, const RoutingOptions& routing) {
  ModelConfig config = model;
  if (config.moe) {
    config.moe->router = routing.router;
    config.moe->ep_ranks = routing.ep_ranks;
  }
  return config;
}

// Returns a stored tensor that aliases the mapped file and keeps it mapped, and must not be
// written; a copy if it is not aligned to its dtype, which the format allows.
Tensor stored_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  const auto bytes = checkpoint.bytes(name);
  const at::TensorOptions options(scalar_type(info.dtype));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  if (bytes.empty() || address % static_cast<uintptr_t>(io::dtype_bytes(info.dtype)) != 0) {
    Tensor copy = at::empty(info.shape, options);
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.data_ptr()));
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), info.shape,
      [file = checkpoint.tensor_file(name)](void* /*data*/) {}, options);
}

kernels::Weight mapped_weight(const io::Checkpoint& checkpoint, const BlockNames& names) {
  std::vector<kernels::RowBlocks> matrices;
  for (const auto& blocks : names) {
    auto& matrix = matrices.emplace_back();
    for (const auto& name : blocks) {
      matrix.push_back(stored_tensor(checkpoint, name));
    }
  }
  return kernels::Weight(std::move(matrices));
}

// Returns the dtype of a matrix for inference on a GPU: that of its stored tensors, or bf16 if
// products are in bf16, which round the matrix anyway. The embedding is not rounded.
at::ScalarType inference_type(const io::Checkpoint& checkpoint, const BlockNames& names,
                              Precision precision) {
  const bool is_embedding = names.front().front() == kEmbedding;
  if (precision == Precision::kBf16 && !is_embedding) {
    return at::kBFloat16;
  }
  std::optional<at::ScalarType> type;
  for (const auto& blocks : names) {
    for (const auto& name : blocks) {
      const at::ScalarType stored = scalar_type(checkpoint.info(name).dtype);
      type = c10::promoteTypes(type.value_or(stored), stored);  // f32 of bf16 and f16
    }
  }
  return type.value_or(at::kFloat);
}

// Intersection of a tensor of a folder with the local part of its sharded matrix: `count` elements
// from element `begin` of the tensor, possibly none.
struct Overlap {
  explicit Overlap(const StoredRange& range) {
    const distributed::Part& part = range.weight->part;
    const int64_t first = std::clamp(part.begin, range.begin, range.begin + range.count);
    const int64_t end = std::clamp(part.end, range.begin, range.begin + range.count);
    begin = first - range.begin;
    count = end - first;
    values = range.weight->shard.narrow(0, count > 0 ? first - part.begin : 0, count);
  }
  int64_t begin, count;
  Tensor values;
};

std::string config_text(const ModelConfig& model, const RoutingOptions& routing,
                        const io::Checkpoint& parent, const LossCoefficients& coefficients) {
  ModelConfig config = routed_config(model, routing);
  if (config.moe) {
    config.moe->lb_coef = coefficients.load_balance.value_or(config.moe->lb_coef);
    config.moe->entropy_coef = coefficients.entropy.value_or(config.moe->entropy_coef);
    config.moe->z_coef = coefficients.z.value_or(config.moe->z_coef);
    config.moe->seq_lb_coef = coefficients.sequence_balance.value_or(config.moe->seq_lb_coef);
    if (coefficients.lambda) {
      config.moe->lambda = coefficients.lambda;
    }
  }
  return config_json(config, parent.config()).dump(2) + "\n";
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
  if (shared.defined()) {
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
    shards = std::make_unique<WeightShards>(*sharded_over, device, layer_unit(config.layers) + 1);
  }
  make_matrices(moe_names(FolderForm::kMoe),
                [](const BlockNames& /*names*/) { return at::kFloat; });
}

Llama::Weights::Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
                        const ExpertParallel& expert_parallel, at::Device device,
                        Precision precision)
    : Weights(WithoutMatrices(), model_config, expert_parallel, device) {
  storage = Storage::kStored;
  const MoeNames names = moe_names(written_form(config));
  is_mapped = kernels::device_traits(device).has_host_memory;
  if (!is_mapped) {
    make_matrices(names, [&](const BlockNames& blocks) {
      return inference_type(checkpoint, blocks, precision);
    });
    return;
  }
  for (const auto& [name, view] : stored_views(written_form(config))) {  // no matrices yet
    view.copy_(stored_tensor(checkpoint, name));
  }
  for (const MatrixSlot& slot : matrix_slots(names)) {
    if (slot.tensor != nullptr) {
      *slot.tensor = stored_tensor(checkpoint, slot.names.front().front());
    } else {
      *slot.weight = mapped_weight(checkpoint, slot.names);
    }
  }
}

Llama::Weights::Weights(WithoutMatrices /*tag*/, const ModelConfig& model_config,
                        const ExpertParallel& expert_parallel, at::Device device)
    : config(model_config), parallel(expert_parallel) {
  const int64_t processes = parallel.size();
  MOE_CHECK(processes == 1 || (config.moe && parallel.layout.experts == config.moe->experts &&
                               config.moe->experts % processes == 0),
            "experts of {} processes", processes);
  const at::TensorOptions options(device);
  norm = at::empty({config.hidden_size}, options);
  for (int64_t index = 0; index < config.layers; ++index) {
    layers.push_back(empty_layer(config, index, options));
  }
}

void Llama::Weights::make_matrices(const MoeNames& names, const TypeOfMatrix& type_of) {
  for (const MatrixSlot& slot : matrix_slots(names)) {
    const Tensor matrix = shards && !slot.is_expert
                              ? shards->add(slot.unit, slot.shape)
                              : at::empty(slot.shape, norm.options().dtype(type_of(slot.names)));
    if (slot.tensor != nullptr) {
      *slot.tensor = matrix;
    } else {
      *slot.weight = matrix;
    }
  }
}

std::vector<MatrixSlot> Llama::Weights::matrix_slots(const MoeNames& names) {
  const int64_t width = config.hidden_size, vocabulary = config.vocab_size;
  std::vector<MatrixSlot> slots;
  const auto add_table = [&](Tensor& tensor, size_t unit, const char* name) {
    slots.push_back({nullptr, &tensor, unit, {vocabulary, width}, {{name}}, {vocabulary}});
  };
  add_table(embedding, kEmbeddingUnit, kEmbedding);
  if (!config.tie_word_embeddings) {
    add_table(head, head_unit(config), "lm_head.weight");
  }
  for (int64_t index = 0; index < config.layers; ++index) {
    add_attention_slots(index, slots);
    add_feed_forward_slots(index, names, slots);
  }
  return slots;
}

void Llama::Weights::add_attention_slots(int64_t index, std::vector<MatrixSlot>& slots) {
  const int64_t width = config.hidden_size;
  const int64_t queries = config.heads * config.head_dim, keys = config.kv_heads * config.head_dim;
  const std::string prefix = layer_prefix(index) + "self_attn.";
  AttentionWeights& attention = layers[index].attention;
  slots.push_back(
      {.weight = &attention.qkv,
       .unit = layer_unit(index),
       .shape = {queries + 2 * keys, width},
       .names = {{prefix + "q_proj.weight", prefix + "k_proj.weight", prefix + "v_proj.weight"}},
       .rows = {queries, keys, keys}});
  slots.push_back({.weight = &attention.output,
                   .unit = layer_unit(index),
                   .shape = {width, queries},
                   .names = {{prefix + "o_proj.weight"}},
                   .rows = {width}});
}

void Llama::Weights::add_feed_forward_slots(int64_t index, const MoeNames& names,
                                            std::vector<MatrixSlot>& slots) {
  const int64_t width = config.hidden_size;
  const std::string prefix = layer_prefix(index);
  Layer& layer = layers[index];
  const auto add = [&](kernels::Weight& gate_up, kernels::Weight& down,
                       const std::vector<std::string>& prefixes, const MoeNames& parts,
                       int64_t inner, bool is_expert) {
    const auto count = std::ssize(prefixes);
    BlockNames gate_up_names, down_names;
    for (const auto& matrix : prefixes) {
      gate_up_names.push_back({matrix + parts.gate, matrix + parts.up});
      down_names.push_back({matrix + parts.down});
    }
    slots.push_back({.weight = &gate_up,
                     .unit = layer_unit(index),
                     .shape = {count, 2 * inner, width},
                     .names = std::move(gate_up_names),
                     .rows = {inner, inner},
                     .is_expert = is_expert});
    slots.push_back({.weight = &down,
                     .unit = layer_unit(index),
                     .shape = {count, width, inner},
                     .names = std::move(down_names),
                     .rows = {width},
                     .is_expert = is_expert});
  };
  if (!config.is_moe_layer(index)) {
    add(layer.gate_up, layer.down, {prefix + "mlp"}, moe_names(FolderForm::kMoe),
        config.intermediate_size, /*is_expert=*/false);
    return;
  }
  const int64_t experts = config.moe->experts / parallel.size();
  std::vector<std::string> prefixes;
  for (int64_t expert = 0; expert < experts; ++expert) {
    prefixes.push_back(
        fmt::format("{}{}{}", prefix, names.experts, parallel.ep_rank() * experts + expert));
  }
  add(layer.gate_up, layer.down, prefixes, names, config.moe->expert_width, /*is_expert=*/true);
  if (SharedExpert& shared = layer.shared_expert; shared.defined()) {
    add(shared.gate_up, shared.down, {prefix + kSharedExpert}, names,
        config.moe->shared_expert_width, /*is_expert=*/false);
  }
}

std::map<std::string, Tensor> Llama::Weights::stored_views(FolderForm form) {
  const MoeNames names = moe_names(form);
  std::map<std::string, Tensor> views{{"model.norm.weight", norm.detach()}};
  for (int64_t index = 0; index < config.layers; ++index) {
    add_vector_views(index, names, views);
  }
  for (const MatrixSlot& slot : matrix_slots(names)) {
    if (const kernels::Weight weight = slot.value(); !shards || !shards->find(weight.tensor)) {
      add_blocks(weight, slot.names, slot.rows, views);
    }
  }
  return views;
}

std::map<std::string, StoredRange> Llama::Weights::sharded_ranges(FolderForm form) {
  std::map<std::string, StoredRange> ranges;
  for (const MatrixSlot& slot : matrix_slots(moe_names(form))) {
    const ShardedWeight* sharded = shards ? shards->find(slot.value().tensor) : nullptr;
    int64_t begin = 0;  // a sharded weight is one matrix
    for (size_t block = 0; sharded != nullptr && block < slot.rows.size(); ++block) {
      const int64_t count = slot.rows[block] * slot.shape.back();
      ranges[slot.names.front().at(block)] = {sharded, begin, count};
      begin += count;
    }
  }
  return ranges;
}

void Llama::Weights::gather_in_bf16() {
  for (size_t unit = kEmbeddingUnit + 1; unit <= layer_unit(config.layers); ++unit) {
    shards->gather_in_bf16(unit);
  }
}

void Llama::Weights::add_vector_views(int64_t index, const MoeNames& names,
                                      std::map<std::string, Tensor>& views) const {
  const Layer& layer = layers[index];
  const std::string prefix = layer_prefix(index);
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
  if (layer.shared_expert.defined()) {
    views[prefix + kSharedExpertGate] = layer.shared_expert.gate.detach();
  }
  if (layer.attention.bias.defined()) {
    const int64_t keys = config.kv_heads * config.head_dim;
    const auto biases = layer.attention.bias.detach().split_with_sizes(
        {config.heads * config.head_dim, keys, keys});
    views[prefix + "self_attn.q_proj.bias"] = biases[0];
    views[prefix + "self_attn.k_proj.bias"] = biases[1];
    views[prefix + "self_attn.v_proj.bias"] = biases[2];
  }
}

Llama Llama::load(const io::Checkpoint& checkpoint, const distributed::Layout& layout,
                  at::Device device, Storage storage, const ComputeOptions& compute,
                  distributed::Comm* sharded_over) {
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  check_tensors(checkpoint, config);
  const ExpertParallel parallel{nullptr, layout};
  Llama model;
  model.weights_ =
      storage == Storage::kStored
          ? std::make_unique<Weights>(checkpoint, config, parallel, device, compute.precision)
          : std::make_unique<Weights>(config, parallel, device, sharded_over);
  model.set_compute(compute);
  if (sharded_over != nullptr && kernels::device_traits(device).has_tensor_cores &&
      compute.precision == Precision::kBf16) {
    model.weights_->gather_in_bf16();
  }
  if (!model.weights_->is_mapped) {
    for (const auto& [name, view] : model.weights_->stored_views(written_form(config))) {
      view.copy_(stored_tensor(checkpoint, name));
      checkpoint.tensor_file(name)->file().drop(checkpoint.bytes(name));  // frees the page cache
    }
    for (const auto& [name, range] : model.weights_->sharded_ranges(written_form(config))) {
      if (const Overlap own(range); own.count > 0) {
        own.values.copy_(
            stored_tensor(checkpoint, name).view({-1}).narrow(0, own.begin, own.count));
      }
      checkpoint.tensor_file(name)->file().drop(checkpoint.bytes(name));
    }
  }
  for (const auto& info : shared_expert_tensors(config)) {
    if (info.elements() > 0 && checkpoint.has(info.name)) {
      model.weights_->idle[info.name] =
          stored_tensor(checkpoint, info.name).to(at::kFloat, false, true);
    }
  }
  return model;
}

std::vector<FolderTensor> Llama::folder_tensors(const RoutingOptions& routing) const {
  const ModelConfig config = routed_config(weights_->config, routing);
  const auto views = weights_->stored_views(written_form(config));
  const auto ranges = weights_->sharded_ranges(written_form(config));
  std::vector<FolderTensor> tensors;
  for (const auto& info : expected_tensors(config)) {
    const auto range = ranges.find(info.name);
    const auto view = views.find(info.name);
    if (range != ranges.end()) {
      const Overlap own(range->second);
      tensors.push_back({info, own.values, own.begin});
    } else if (view != views.end()) {
      tensors.push_back({info, view->second});
    } else if (is_router_bias(info.name)) {  // the router has no bias yet
      tensors.push_back({info, at::zeros(info.shape)});
    } else {
      MOE_CHECK(layout().group() > 1, "no tensor {}", info.name);
      tensors.push_back({info, Tensor()});
    }
  }
  for (const auto& info : shared_expert_tensors(config)) {
    const auto idle = weights_->idle.find(info.name);
    tensors.push_back({info, idle != weights_->idle.end() ? idle->second : at::zeros(info.shape)});
  }
  return tensors;
}

void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const SharedFolder& folder, const LossCoefficients& coefficients) {
  std::vector<FolderTensor> tensors;
  folder.run_on_all_ranks([&] {
    tensors = model.lora().rank > 0 ? model.merged().folder_tensors(routing)
                                    : model.folder_tensors(routing);
  });
  folder.run_on_first_rank([&] {
    io::write_file(folder.path() / "config.json",
                   config_text(model.config(), routing, parent, coefficients));
    io::copy_tokenizer_files(parent.folder(), folder.path(), parent.edited_files());
  });
  write_tensors(folder, tensors, kShardBytes);
}

void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force, distributed::Comm& ranks,
                 const LossCoefficients& coefficients,
                 const std::function<void(const std::filesystem::path&)>& add_files) {
  SharedFolder folder(out, force, ranks);
  write_folder(model, routing, parent, folder, coefficients);
  if (add_files) {
    folder.run_on_first_rank([&] { add_files(folder.path()); });
  }
  folder.commit();
}

}  // namespace moe::model
