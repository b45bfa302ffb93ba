// A Llama from a folder and into one.

#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/io/file.h"
#include "core/model/llama/llama_weights.h"
#include "core/model/llama/memory_need.h"

namespace moe::model {

using at::Tensor;

namespace {

constexpr uint64_t kShardBytes = uint64_t{5} << 30;
constexpr const char* kEmbedding = "model.embed_tokens.weight";

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

// A stored tensor where the file is mapped, which it keeps so. LibTorch has no read-only tensors;
// this one is only read from. The format promises no alignment: one that lies between the addresses
// of its type is copied.
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
      [file = checkpoint.shared_file_of(name)](void* /*data*/) {}, options);
}

// A weight whose matrices stay where the folder maps them.
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

// The type in which a GPU keeps a matrix that does not train: the one that its tensors are stored
// in, so that it takes no more than they do, but bf16 where products round it to that anyway. The
// embedding is looked up, which rounds nothing.
at::ScalarType kept_type(const io::Checkpoint& checkpoint, const BlockNames& names,
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

// What a tensor of a folder has in common with the part of its matrix that is here: elements of the
// tensor from `begin` on, perhaps none.
struct Overlap {
  explicit Overlap(const StoredRange& range) {
    const distributed::Part& part = range.weight->part;
    const int64_t first = std::clamp(part.begin, range.begin, range.begin + range.count);
    const int64_t end = std::clamp(part.end, range.begin, range.begin + range.count);
    begin = first - range.begin;
    count = end - first;
    of_shard = range.weight->shard.narrow(0, count > 0 ? first - part.begin : 0, count);
  }
  int64_t begin, count;
  Tensor of_shard;
};

// config.json of a folder.
std::string config_text(const ModelConfig& model, const RoutingOptions& routing,
                        const io::Checkpoint& parent, const LossCoefficients& coefficients) {
  ModelConfig config = config_with(model, routing);
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

Llama::Weights::Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
                        const ExpertParallel& expert_parallel, at::Device device,
                        const ComputeOptions& its_compute)
    : Weights(WithoutMatrices(), model_config, expert_parallel, device) {
  storage = Storage::kStored;
  const MoeNames names = moe_names(form_of(config));
  if (!device.is_cpu()) {
    make_matrices(names, [&](const BlockNames& blocks) {
      return kept_type(checkpoint, blocks, its_compute.precision);
    });
    return;
  }
  for (const auto& [name, view] : stored_views(form_of(config))) {  // no matrices yet
    view.copy_(stored_tensor(checkpoint, name));
  }
  map_matrices(checkpoint, names);
}

void Llama::Weights::map_matrices(const io::Checkpoint& checkpoint, const MoeNames& moe_names) {
  embedding = stored_tensor(checkpoint, kEmbedding);
  if (!config.tie_word_embeddings) {
    head = stored_tensor(checkpoint, "lm_head.weight");
  }
  for (int64_t index = 0; index < config.layers; ++index) {
    const LayerNames names = layer_names(index, moe_names);
    Layer& layer = layers[index];
    layer.attention.qkv = mapped_weight(checkpoint, names.qkv);
    layer.attention.output = mapped_weight(checkpoint, names.output);
    layer.gate_up = mapped_weight(checkpoint, names.gate_up);
    layer.down = mapped_weight(checkpoint, names.down);
    if (layer.shared_expert.is_there()) {
      layer.shared_expert.gate_up = mapped_weight(checkpoint, names.shared_gate_up);
      layer.shared_expert.down = mapped_weight(checkpoint, names.shared_down);
    }
  }
}

Llama Llama::load(const io::Checkpoint& checkpoint, const distributed::Layout& layout,
                  at::Device device, Storage storage, const ComputeOptions& compute,
                  distributed::Comm* sharded_over) {
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  check_tensors(checkpoint, config);
  const ExpertParallel parallel{nullptr, layout};
  Llama model;
  model.weights_ = storage == Storage::kStored
                       ? std::make_unique<Weights>(checkpoint, config, parallel, device, compute)
                       : std::make_unique<Weights>(config, parallel, device, sharded_over);
  model.set_compute(compute);
  if (sharded_over != nullptr && device.is_cuda() && compute.precision == Precision::kBf16) {
    model.weights_->gather_in_bf16();
  }
  if (storage == Storage::kF32 || !device.is_cpu()) {
    for (const auto& [name, view] : model.weights_->stored_views(form_of(config))) {
      view.copy_(stored_tensor(checkpoint, name));
      checkpoint.file_of(name).file().drop(checkpoint.bytes(name));  // memory holds it once
    }
    for (const auto& [name, range] : model.weights_->sharded_ranges(form_of(config))) {
      if (const Overlap own(range); own.count > 0) {
        own.of_shard.copy_(
            stored_tensor(checkpoint, name).view({-1}).narrow(0, own.begin, own.count));
      }
      checkpoint.file_of(name).file().drop(checkpoint.bytes(name));
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
  const ModelConfig config = config_with(weights_->config, routing);
  const auto views = weights_->stored_views(form_of(config));
  const auto ranges = weights_->sharded_ranges(form_of(config));
  std::vector<FolderTensor> tensors;
  for (const auto& info : expected_tensors(config)) {
    if (const auto range = ranges.find(info.name); range != ranges.end()) {
      const Overlap own(range->second);
      tensors.push_back({info, own.of_shard, own.begin});
      continue;
    }
    const auto view = views.find(info.name);
    if (view == views.end() && is_router_bias(info.name)) {
      tensors.push_back({info, at::zeros(info.shape)});  // a router that has had none so far
      continue;
    }
    MOE_CHECK(view != views.end() || layout().group() > 1, "no tensor {}", info.name);
    tensors.push_back({info, view == views.end() ? Tensor() : view->second});
  }
  for (const auto& info : shared_expert_tensors(config)) {
    const auto idle = weights_->idle.find(info.name);
    tensors.push_back({info, idle != weights_->idle.end() ? idle->second : at::zeros(info.shape)});
  }
  return tensors;
}

std::vector<io::TensorSource> Llama::tensor_sources(const RoutingOptions& routing) const {
  return sources_of(folder_tensors(routing));
}

void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const io::StagedFolder& folder, const LossCoefficients& coefficients) {
  folder.write_text("config.json", config_text(model.config(), routing, parent, coefficients));
  const std::optional<Llama> merged =
      model.lora().rank > 0 ? std::optional(model.merged()) : std::nullopt;
  io::write_tensors(folder.path(), (merged ? *merged : model).tensor_sources(routing), kShardBytes);
  io::copy_tokenizer_files(parent.folder(), folder.path());
}

void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const SharedFolder& folder, const LossCoefficients& coefficients) {
  std::vector<FolderTensor> tensors;
  folder.by_all([&] {
    tensors = (model.lora().rank > 0 ? model.merged().folder_tensors(routing)
                                     : model.folder_tensors(routing));
  });
  folder.by_first([&] {
    io::write_file(folder.path() / "config.json",
                   config_text(model.config(), routing, parent, coefficients));
    io::copy_tokenizer_files(parent.folder(), folder.path());
  });
  write_tensors(folder, tensors, kShardBytes);
}

void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force,
                 const LossCoefficients& coefficients) {
  io::StagedFolder folder(out, force);
  write_folder(model, routing, parent, folder, coefficients);
  folder.commit();
}

void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force, distributed::Comm& ranks,
                 const LossCoefficients& coefficients) {
  SharedFolder folder(out, force, ranks);
  write_folder(model, routing, parent, folder, coefficients);
  folder.commit();
}

}  // namespace moe::model
