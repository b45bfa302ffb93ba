// A Llama from a folder and into one.

#include "core/base/error.h"
#include "core/model/llama_weights.h"

namespace moe::model {

using torch::Tensor;

namespace {

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

// A stored tensor where it lies. LibTorch has no read-only tensors; this one is only read from.
Tensor stored_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  void* data = const_cast<std::byte*>(checkpoint.bytes(name).data());
  return at::from_blob(data, info.shape, at::TensorOptions(scalar_type(info.dtype)));
}

}  // namespace

Llama Llama::load(const io::Checkpoint& checkpoint, const dist::Layout& layout) {
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  check_tensors(checkpoint, config);
  Llama model;
  model.weights_ = std::make_unique<Weights>(config, ExpertParallel{nullptr, layout});
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
