#include "core/model/config/weights.h"

#include <cstring>
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

// List of tensors under a prefix, in the order of LLaMA's files.
struct TensorList {
  const ModelConfig& config;
  std::vector<io::TensorInfo>& tensors;
  std::string prefix = {};

  void add(const std::string& name, Shape shape) { add(name, stored_dtype(config), shape); }
  void add(const std::string& name, io::DType dtype, Shape shape) {
    tensors.push_back({prefix + name, dtype, std::move(shape)});
  }
  // Adds gate, up [F, D] and down [D, F].
  void add_feed_forward(const std::string& name, const MoeNames& names, int64_t width) {
    add(name + names.gate, {width, config.hidden_size});
    add(name + names.up, {width, config.hidden_size});
    add(name + names.down, {config.hidden_size, width});
  }
  void add_shared_expert(int64_t width) {
    add_feed_forward(kSharedExpert, moe_names(FolderForm::kMoe), width);
    add(kSharedExpertGate, {1, config.hidden_size});
  }
  void add_moe_block();
  void add_attention();
};

void TensorList::add_moe_block() {
  const MoeConfig& moe = *config.moe;
  const FolderForm form = written_form(moe);
  const MoeNames names = moe_names(form);
  add(names.router, form == FolderForm::kMoe ? io::DType::kF32 : stored_dtype(config),
      {moe.experts, config.hidden_size});
  if (moe.router.bias_rate) {
    add(kRouterBias, io::DType::kF32, {moe.experts});
  }
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    add_feed_forward(fmt::format("{}{}", names.experts, expert), names, moe.expert_width);
  }
  if (moe.shared_expert_width > 0) {
    add_shared_expert(moe.shared_expert_width);
  }
}

void TensorList::add_attention() {
  const int64_t hidden = config.hidden_size;               // D
  const int64_t queries = config.heads * config.head_dim;  // H * A
  const int64_t keys = config.kv_heads * config.head_dim;  // G * A
  add("self_attn.q_proj.weight", {queries, hidden});
  add("self_attn.k_proj.weight", {keys, hidden});
  add("self_attn.v_proj.weight", {keys, hidden});
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", {queries});
    add("self_attn.k_proj.bias", {keys});
    add("self_attn.v_proj.bias", {keys});
  }
  add("self_attn.o_proj.weight", {hidden, queries});
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {config.head_dim});
    add("self_attn.k_norm.weight", {config.head_dim});
  }
}

// Throws UserError for the in-memory format of transformers, which it can also write.
void refuse_fused_experts(const io::Checkpoint& checkpoint) {
  for (const auto& tensor : checkpoint.tensors()) {
    USER_ERROR_IF(tensor.name.ends_with(".experts.gate_up_proj"),
                  "{}: '{}' {} holds the matrices of all experts; save the folder with "
                  "save_pretrained(save_original_format=True), which writes them one by one",
                  checkpoint.folder().string(), tensor.name, io::shape_text(tensor.shape));
  }
}

void check_tensor(const io::TensorInfo& tensor, const Shape& expected,
                  const io::Checkpoint& checkpoint) {
  USER_ERROR_IF(tensor.shape != expected,
                "{}: '{}' is {}, config.json says {}: they belong to different models; "
                "download both again",
                checkpoint.folder().string(), tensor.name, io::shape_text(tensor.shape),
                io::shape_text(expected));
  USER_ERROR_IF(!io::is_floating(tensor.dtype),
                "{}: '{}' is stored as {}; weights must be F32, F16 or BF16",
                checkpoint.folder().string(), tensor.name, io::dtype_name(tensor.dtype));
}

// Throws UserError if a tied checkpoint stores a head that is not a copy of the embedding.
void check_tied_head(const io::Checkpoint& checkpoint) {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  if (!checkpoint.has(head)) {
    return;
  }
  const auto stored = checkpoint.bytes(head), expected = checkpoint.bytes(embedding);
  const bool is_copy = checkpoint.info(head).dtype == checkpoint.info(embedding).dtype &&
                       std::memcmp(stored.data(), expected.data(), expected.size()) == 0;
  checkpoint.tensor_file(head)->file().drop(stored);
  USER_ERROR_IF(!is_copy,
                "{}: tie_word_embeddings is true, but {} differs from {}; to use the stored head, "
                "set \"tie_word_embeddings\": false in config.json",
                checkpoint.folder().string(), head, embedding);
}

}  // namespace

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

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
  std::vector<io::TensorInfo> out;
  const Shape hidden{config.hidden_size}, table{config.vocab_size, config.hidden_size};
  TensorList{config, out}.add("model.embed_tokens.weight", table);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    TensorList list{config, out, layer_prefix(layer)};
    list.add("input_layernorm.weight", hidden);
    list.add_attention();
    list.add("post_attention_layernorm.weight", hidden);
    if (config.is_moe_layer(layer)) {
      list.add_moe_block();
    } else {
      list.add_feed_forward("mlp", moe_names(FolderForm::kMoe), config.intermediate_size);
    }
  }
  TensorList{config, out}.add("model.norm.weight", hidden);
  if (!config.tie_word_embeddings) {
    TensorList{config, out}.add("lm_head.weight", table);
  }
  return out;
}

std::vector<io::TensorInfo> shared_expert_tensors(const ModelConfig& config) {
  std::vector<io::TensorInfo> out;
  if (config.moe && config.moe->shared_expert_width == 0 &&
      written_architecture(*config.moe, config.qk_norm).may_have_shared_experts) {
    for (const int64_t layer : config.moe->layers) {
      TensorList{config, out, layer_prefix(layer)}.add_shared_expert(/*width=*/0);
    }
  }
  return out;
}

void check_tensors(const io::Checkpoint& checkpoint, const ModelConfig& config) {
  refuse_fused_experts(checkpoint);
  std::map<std::string, Shape> known;
  for (const auto& info : expected_tensors(config)) {
    USER_ERROR_IF(!checkpoint.has(info.name),
                  "{}: tensor '{}' {} is missing; are all shards present, and does config.json "
                  "describe this model?",
                  checkpoint.folder().string(), info.name, io::shape_text(info.shape));
    known.emplace(info.name, info.shape);
  }
  for (const auto& info : shared_expert_tensors(config)) {
    known.emplace(info.name, info.shape);
  }
  known.emplace("lm_head.weight", Shape{config.vocab_size, config.hidden_size});  // also if tied
  for (const auto& tensor : checkpoint.tensors()) {
    if (const auto shape = known.find(tensor.name); shape != known.end()) {
      check_tensor(tensor, shape->second, checkpoint);
    } else if (!tensor.name.ends_with("rotary_emb.inv_freq")) {  // a buffer of old transformers
      throw UserError("{}: tensor '{}' {} is not one of the {} layers that config.json describes",
                      checkpoint.folder().string(), tensor.name, io::shape_text(tensor.shape),
                      config.layers);
    }
  }
  if (config.tie_word_embeddings) {
    check_tied_head(checkpoint);
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
