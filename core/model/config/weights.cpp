#include "core/model/config/weights.h"

#include <map>

#include "core/base/error.h"
#include "core/model/config/architecture.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

using Shape = std::vector<int64_t>;

io::DType stored_dtype(const ModelConfig& config) {
  if (config.dtype == "bfloat16") {
    return io::DType::kBF16;
  }
  return config.dtype == "float16" ? io::DType::kF16 : io::DType::kF32;
}

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

// Appends gate, up [F, D] and down [D, F] under `prefix`, in the order of LLaMA's files.
void add_feed_forward(std::vector<io::TensorInfo>& out, const std::string& prefix,
                      const MoeNames& names, io::DType dtype, int64_t hidden, int64_t width) {
  out.push_back({prefix + names.gate, dtype, Shape{width, hidden}});
  out.push_back({prefix + names.up, dtype, Shape{width, hidden}});
  out.push_back({prefix + names.down, dtype, Shape{hidden, width}});
}

void add_shared_expert(std::vector<io::TensorInfo>& out, const ModelConfig& config, int64_t layer,
                       int64_t width) {
  const io::DType dtype = stored_dtype(config);
  const std::string prefix = layer_prefix(layer);
  add_feed_forward(out, prefix + kSharedExpert, moe_names(FolderForm::kMoe), dtype,
                   config.hidden_size, width);
  out.push_back({prefix + kSharedExpertGate, dtype, Shape{1, config.hidden_size}});
}

void add_moe_block(std::vector<io::TensorInfo>& out, const ModelConfig& config, int64_t layer) {
  const io::DType dtype = stored_dtype(config);
  const MoeConfig& moe = *config.moe;
  const FolderForm form = written_form(moe);
  const MoeNames names = moe_names(form);
  const std::string prefix = layer_prefix(layer);
  out.push_back({prefix + names.router, form == FolderForm::kMoe ? io::DType::kF32 : dtype,
                 Shape{moe.experts, config.hidden_size}});
  if (moe.router.bias_rate) {
    out.push_back({prefix + kRouterBias, io::DType::kF32, Shape{moe.experts}});
  }
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    add_feed_forward(out, fmt::format("{}{}{}", prefix, names.experts, expert), names, dtype,
                     config.hidden_size, moe.expert_width);
  }
  if (moe.shared_expert_width > 0) {
    add_shared_expert(out, config, layer, moe.shared_expert_width);
  }
}

void add_layer(std::vector<io::TensorInfo>& out, const ModelConfig& config, int64_t layer) {
  const io::DType dtype = stored_dtype(config);
  const int64_t hidden = config.hidden_size;               // D
  const int64_t queries = config.heads * config.head_dim;  // H * A
  const int64_t keys = config.kv_heads * config.head_dim;  // G * A
  const std::string prefix = layer_prefix(layer);
  out.push_back({prefix + "input_layernorm.weight", dtype, Shape{hidden}});
  out.push_back({prefix + "self_attn.q_proj.weight", dtype, Shape{queries, hidden}});
  out.push_back({prefix + "self_attn.k_proj.weight", dtype, Shape{keys, hidden}});
  out.push_back({prefix + "self_attn.v_proj.weight", dtype, Shape{keys, hidden}});
  if (config.qkv_bias) {
    out.push_back({prefix + "self_attn.q_proj.bias", dtype, Shape{queries}});
    out.push_back({prefix + "self_attn.k_proj.bias", dtype, Shape{keys}});
    out.push_back({prefix + "self_attn.v_proj.bias", dtype, Shape{keys}});
  }
  out.push_back({prefix + "self_attn.o_proj.weight", dtype, Shape{hidden, queries}});
  if (config.qk_norm) {
    out.push_back({prefix + "self_attn.q_norm.weight", dtype, Shape{config.head_dim}});
    out.push_back({prefix + "self_attn.k_norm.weight", dtype, Shape{config.head_dim}});
  }
  out.push_back({prefix + "post_attention_layernorm.weight", dtype, Shape{hidden}});
  if (config.is_moe_layer(layer)) {
    add_moe_block(out, config, layer);
  } else {
    add_feed_forward(out, prefix + "mlp", moe_names(FolderForm::kMoe), dtype, hidden,
                     config.intermediate_size);
  }
}

// Throws UserError for the in-memory format of transformers, which it can also write.
void refuse_fused_experts(const io::Checkpoint& checkpoint) {
  for (const auto& found : checkpoint.tensors()) {
    USER_ERROR_IF(found.name.ends_with(".experts.gate_up_proj"),
                  "{}: '{}' {} holds the matrices of all experts; save the folder with "
                  "save_pretrained(save_original_format=True), which writes them one by one",
                  checkpoint.folder().string(), found.name, io::shape_text(found.shape));
  }
}

void check_tensor(const io::TensorInfo& found, const Shape& expected,
                  const io::Checkpoint& checkpoint) {
  USER_ERROR_IF(
      found.shape != expected,
      "{}: '{}' is {}, config.json says {}: they belong to different models; fetch both again",
      checkpoint.folder().string(), found.name, io::shape_text(found.shape),
      io::shape_text(expected));
  USER_ERROR_IF(!io::is_floating(found.dtype),
                "{}: '{}' is stored as {}; weights must be F32, F16 or BF16",
                checkpoint.folder().string(), found.name, io::dtype_name(found.dtype));
}

}  // namespace

MoeNames moe_names(FolderForm form) {
  if (form == FolderForm::kMixtral) {
    return {"block_sparse_moe.gate.weight", "block_sparse_moe.experts.", ".w1.weight", ".w3.weight",
            ".w2.weight"};
  }
  return {"mlp.gate.weight", "mlp.experts.", ".gate_proj.weight", ".up_proj.weight",
          ".down_proj.weight"};
}

bool is_router(const std::string& name) {
  return name.ends_with(".mlp.gate.weight") || name.ends_with(".block_sparse_moe.gate.weight");
}

bool is_router_bias(const std::string& name) { return name.ends_with(kRouterBias); }

bool is_shared_expert_gate(const std::string& name) { return name.ends_with(kSharedExpertGate); }

std::vector<io::TensorInfo> expected_tensors(const ModelConfig& config) {
  const io::DType dtype = stored_dtype(config);
  std::vector<io::TensorInfo> out;
  out.push_back({"model.embed_tokens.weight", dtype, Shape{config.vocab_size, config.hidden_size}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    add_layer(out, config, layer);
  }
  out.push_back({"model.norm.weight", dtype, Shape{config.hidden_size}});
  if (!config.tie_word_embeddings) {
    out.push_back({"lm_head.weight", dtype, Shape{config.vocab_size, config.hidden_size}});
  }
  return out;
}

std::vector<io::TensorInfo> shared_expert_tensors(const ModelConfig& config) {
  std::vector<io::TensorInfo> out;
  if (!config.moe || config.moe->shared_expert_width > 0 ||
      !written_architecture(*config.moe, config.qk_norm).may_have_shared_experts) {
    return out;
  }
  for (const int64_t layer : config.moe->layers) {
    add_shared_expert(out, config, layer, /*width=*/0);
  }
  return out;
}

void check_tensors(const io::Checkpoint& checkpoint, const ModelConfig& config) {
  refuse_fused_experts(checkpoint);
  std::map<std::string, Shape> known;
  for (const auto& info : expected_tensors(config)) {
    USER_ERROR_IF(
        !checkpoint.has(info.name),
        "{}: tensor '{}' {} is missing; is every shard there, and config.json that of this model?",
        checkpoint.folder().string(), info.name, io::shape_text(info.shape));
    known.emplace(info.name, info.shape);
  }
  for (const auto& info : shared_expert_tensors(config)) {
    known.emplace(info.name, info.shape);
  }
  known.emplace("lm_head.weight", Shape{config.vocab_size, config.hidden_size});  // also if tied
  for (const auto& found : checkpoint.tensors()) {
    if (const auto entry = known.find(found.name); entry != known.end()) {
      check_tensor(found, entry->second, checkpoint);
    } else if (!found.name.ends_with("rotary_emb.inv_freq")) {  // a buffer of old transformers
      throw UserError("{}: tensor '{}' {} is not one of the {} layers that config.json describes",
                      checkpoint.folder().string(), found.name, io::shape_text(found.shape),
                      config.layers);
    }
  }
}

ParameterCount count_parameters(const ModelConfig& config) {
  ParameterCount count;
  for (const auto& info : expected_tensors(config)) {
    count.total += info.elements();
  }
  count.active = count.total;
  if (config.moe) {
    const MoeConfig& moe = *config.moe;
    const int64_t used = moe.router.family->active_experts(moe.router, moe.experts);
    const int64_t expert_parameters = 3 * config.hidden_size * moe.expert_width;
    count.active -= std::ssize(moe.layers) * (moe.experts - used) * expert_parameters;
  }
  return count;
}

}  // namespace moe::model
