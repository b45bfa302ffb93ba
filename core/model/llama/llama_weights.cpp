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

// Adds views of a weight to `views`, by the names of the tensors of a checkpoint. `rows` has the
// number of rows of each tensor of one matrix.
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

// Returns a stored tensor that aliases the mapped file and keeps it mapped. It must not be written.
// Returns a copy if the values are not aligned to their dtype, which the format allows.
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

// Returns the dtype of a matrix for inference on a GPU: bf16 if products are in bf16, which round
// the matrix anyway, else the dtype of its stored tensors. The embedding is not rounded.
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
      type = c10::promoteTypes(type.value_or(stored), stored);  // bf16 and f16 give f32
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

Llama::Weights::Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
                        at::Device device, distributed::Comm* sharded_over)
    : config(model_config), parallel(expert_parallel) {
  make_layers();
  if (sharded_over != nullptr) {
    shards = std::make_unique<WeightShards>(*sharded_over, device, layer_unit(config.layers) + 1);
  }
  for (const WeightSlot& slot : slots()) {
    if (shards && slot.kind == WeightSlot::Kind::kDense) {
      *slot.tensor = shards->add(slot.unit, slot.shape);
    } else {
      *slot.tensor = slot.kind == WeightSlot::Kind::kSmall ? at::zeros(slot.shape, device)
                                                           : at::empty(slot.shape, device);
    }
  }
}

Llama::Weights::Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
                        const ExpertParallel& expert_parallel, at::Device device,
                        Precision precision)
    : config(model_config), parallel(expert_parallel), storage(Storage::kStored) {
  make_layers();
  is_mapped = kernels::device_traits(device).has_host_memory;
  for (const WeightSlot& slot : slots(moe_names(written_form(config)))) {
    if (slot.kind == WeightSlot::Kind::kSmall) {
      *slot.tensor = at::zeros(slot.shape, device);
      std::map<std::string, Tensor> views;
      add_blocks(slot.value(), slot.names, slot.rows, views);
      for (const auto& [name, view] : views) {
        view.copy_(stored_tensor(checkpoint, name));
      }
    } else if (!is_mapped) {
      *slot.tensor = at::empty(slot.shape, at::TensorOptions(device).dtype(
                                               inference_type(checkpoint, slot.names, precision)));
    } else if (slot.weight != nullptr) {
      *slot.weight = mapped_weight(checkpoint, slot.names);
    } else {
      *slot.tensor = stored_tensor(checkpoint, slot.names.front().front());
    }
  }
}

void Llama::Weights::make_layers() {
  const int64_t processes = parallel.size();
  MOE_CHECK(processes == 1 || (config.moe && parallel.layout.experts == config.moe->experts &&
                               config.moe->experts % processes == 0),
            "experts of {} processes", processes);
  layers.resize(config.layers);
}

std::vector<WeightSlot> Llama::Weights::slots(const MoeNames& names) {
  using Kind = WeightSlot::Kind;
  const int64_t width = config.hidden_size, vocabulary = config.vocab_size;
  const std::vector<int64_t> table{vocabulary, width};
  std::vector<WeightSlot> all{{"model.embed_tokens",
                               Kind::kDense,
                               &embedding,
                               table,
                               {{kEmbedding}},
                               {vocabulary},
                               kEmbeddingUnit}};
  for (int64_t index = 0; index < config.layers; ++index) {
    add_layer_slots(index, names, all);
  }
  const size_t unit = layer_unit(config.layers);
  all.push_back(
      {"model.norm", Kind::kSmall, &norm, {width}, {{"model.norm.weight"}}, {width}, unit});
  if (!config.tie_word_embeddings) {
    all.push_back(
        {"lm_head", Kind::kDense, &head, table, {{"lm_head.weight"}}, {vocabulary}, unit});
  }
  return all;
}

void Llama::Weights::add_layer_slots(int64_t index, const MoeNames& names,
                                     std::vector<WeightSlot>& all) {
  using Kind = WeightSlot::Kind;
  const int64_t width = config.hidden_size;
  const int64_t queries = config.heads * config.head_dim, keys = config.kv_heads * config.head_dim;
  const std::string prefix = layer_prefix(index), attention_prefix = prefix + "self_attn.";
  const size_t unit = layer_unit(index);
  Layer& layer = layers[index];
  AttentionWeights& attention = layer.attention;
  const auto qkv_names = [&](const std::string& suffix) {
    return BlockNames{{attention_prefix + "q_proj" + suffix, attention_prefix + "k_proj" + suffix,
                       attention_prefix + "v_proj" + suffix}};
  };
  const auto add_small = [&](const std::string& name, Tensor& tensor,
                             const std::vector<int64_t>& shape, const std::string& stored_name) {
    all.push_back({name.empty() ? "" : prefix + name,
                   Kind::kSmall,
                   &tensor,
                   shape,
                   {{prefix + stored_name}},
                   {shape.front()},
                   unit});
  };
  const auto add_matrix = [&](const std::string& name, Kind kind, kernels::Weight& weight,
                              WeightSlot slot, Adapter& adapter, const std::string& lora_part) {
    slot.name = prefix + name;
    slot.kind = kind;
    slot.tensor = &weight.tensor;
    slot.weight = &weight;
    slot.unit = unit;
    slot.adapter = &adapter;
    slot.lora_part = lora_part;
    all.push_back(std::move(slot));
  };
  const auto add_swiglu = [&](const std::string& name, Kind kind, Experts& experts,
                              const std::vector<std::string>& prefixes, const MoeNames& parts,
                              int64_t inner) {
    const auto count = std::ssize(prefixes);
    WeightSlot gate_up{.shape = {count, 2 * inner, width}, .rows = {inner, inner}};
    WeightSlot down{.shape = {count, width, inner}, .rows = {width}};
    for (const auto& matrix : prefixes) {
      gate_up.names.push_back({matrix + parts.gate, matrix + parts.up});
      down.names.push_back({matrix + parts.down});
    }
    add_matrix(name + ".gate_up", kind, experts.gate_up, gate_up, experts.gate_up_adapter, "ffn");
    add_matrix(name + ".down", kind, experts.down, down, experts.down_adapter, "ffn");
  };

  add_small("input_layernorm", layer.input_norm, {width}, "input_layernorm.weight");
  add_matrix("self_attn.qkv", Kind::kDense, attention.qkv,
             {.shape = {queries + 2 * keys, width},
              .names = qkv_names(".weight"),
              .rows = {queries, keys, keys}},
             attention.qkv_adapter, "attention");
  if (config.qkv_bias) {
    all.push_back({attention_prefix + "qkv_bias",
                   Kind::kSmall,
                   &attention.bias,
                   {queries + 2 * keys},
                   qkv_names(".bias"),
                   {queries, keys, keys},
                   unit});
  }
  add_matrix(
      "self_attn.o_proj", Kind::kDense, attention.output,
      {.shape = {width, queries}, .names = {{attention_prefix + "o_proj.weight"}}, .rows = {width}},
      attention.output_adapter, "attention");
  if (config.qk_norm) {
    add_small("self_attn.q_norm", attention.query_norm, {config.head_dim},
              "self_attn.q_norm.weight");
    add_small("self_attn.k_norm", attention.key_norm, {config.head_dim}, "self_attn.k_norm.weight");
  }
  add_small("post_attention_layernorm", layer.post_norm, {width},
            "post_attention_layernorm.weight");
  if (!config.is_moe_layer(index)) {
    add_swiglu("mlp", Kind::kDense, layer.experts, {prefix + "mlp"}, moe_names(FolderForm::kMoe),
               config.intermediate_size);
    return;
  }
  const MoeConfig& moe = *config.moe;
  add_small("mlp.router", layer.router, {moe.experts, width}, names.router);
  if (moe.router.bias_rate || layer.router_bias.defined()) {
    add_small("", layer.router_bias, {moe.experts}, kRouterBias);
  }
  const int64_t experts = moe.experts / parallel.size();
  std::vector<std::string> prefixes;
  for (int64_t expert = 0; expert < experts; ++expert) {
    prefixes.push_back(
        fmt::format("{}{}{}", prefix, names.experts, parallel.ep_rank() * experts + expert));
  }
  add_swiglu("mlp", Kind::kExperts, layer.experts, prefixes, names, moe.expert_width);
  if (moe.shared_expert_width > 0) {
    SharedExpert& shared = layer.shared_expert;
    add_swiglu("mlp.shared_expert", Kind::kDense, shared.expert, {prefix + kSharedExpert}, names,
               moe.shared_expert_width);
    add_small("mlp.shared_expert_gate", shared.gate, {1, width}, kSharedExpertGate);
  }
}

std::map<std::string, Tensor> Llama::Weights::stored_views(FolderForm form) {
  std::map<std::string, Tensor> views;
  for (const WeightSlot& slot : slots(moe_names(form))) {
    if (!shards || !shards->find(*slot.tensor)) {
      add_blocks(slot.value(), slot.names, slot.rows, views);
    }
  }
  return views;
}

std::map<std::string, StoredRange> Llama::Weights::sharded_ranges(FolderForm form) {
  std::map<std::string, StoredRange> ranges;
  for (const WeightSlot& slot : slots(moe_names(form))) {
    const ShardedWeight* sharded = shards ? shards->find(*slot.tensor) : nullptr;
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
      model.weights_->unused_gates[info.name] =
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
    const auto gate = weights_->unused_gates.find(info.name);
    tensors.push_back(
        {info, gate != weights_->unused_gates.end() ? gate->second : at::zeros(info.shape)});
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
