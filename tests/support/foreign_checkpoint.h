#pragma once
// Small random folders with the config keys and tensor names of transformers 5.23: dense models of
// other families (Mistral, Qwen2, Qwen3) and stock mixtures. Names and shapes are written by hand.

#include "core/io/file.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {

enum class Foreign { kMixtral, kQwen2Moe, kQwen3Moe, kMistral, kQwen2, kQwen3 };

struct ForeignCheckpoint {
  Foreign kind = Foreign::kMixtral;
  bool normalised = true;             // Qwen2-MoE, Qwen3-MoE: norm_topk_prob
  bool biases = true;                 // Qwen2-MoE: qkv_bias
  int64_t experts = 4;                // E
  int64_t expert_width = 12;          // Qwen2-MoE, Qwen3-MoE; Mixtral: `tiny.intermediate`
  std::vector<int64_t> dense_layers;  // Qwen2-MoE, Qwen3-MoE: mlp_only_layers
  int64_t shared_width = 0;           // Qwen2-MoE
  TinyCheckpoint tiny = {};           // head_dim 0 and untied
};

inline bool is_mixture(Foreign kind) {
  return kind == Foreign::kMixtral || kind == Foreign::kQwen2Moe || kind == Foreign::kQwen3Moe;
}

inline bool has_biases(const ForeignCheckpoint& options) {
  return options.kind == Foreign::kQwen2 || (options.kind == Foreign::kQwen2Moe && options.biases);
}

inline bool has_head_norms(Foreign kind) {
  return kind == Foreign::kQwen3 || kind == Foreign::kQwen3Moe;
}

// Sets the keys that name the family, and RoPE.
inline void set_family(Foreign kind, OrderedJson& config) {
  struct Family {
    const char* architecture;
    const char* model_type;
    double rope_theta;
  };
  constexpr Family kFamilies[] = {
      {"MixtralForCausalLM", "mixtral", 1e6},    {"Qwen2MoeForCausalLM", "qwen2_moe", 1e4},
      {"Qwen3MoeForCausalLM", "qwen3_moe", 1e6}, {"MistralForCausalLM", "mistral", 1e4},
      {"Qwen2ForCausalLM", "qwen2", 1e6},        {"Qwen3ForCausalLM", "qwen3", 1e6}};
  const Family& family = kFamilies[static_cast<size_t>(kind)];
  config["architectures"] = {family.architecture};
  config["model_type"] = family.model_type;
  config["rope_parameters"] = {{"rope_theta", family.rope_theta}, {"rope_type", "default"}};
  config["sliding_window"] = nullptr;
}

// Sets the keys of a dense model.
inline void set_kin_keys(const ForeignCheckpoint& options, OrderedJson& config) {
  if (options.kind == Foreign::kMistral) {
    config["head_dim"] = nullptr;
    if (options.tiny.head_dim > 0) {
      config["head_dim"] = options.tiny.head_dim;
    }
    return;
  }
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  config["max_window_layers"] = 28;
  config["use_sliding_window"] = false;
  config["layer_types"] =
      std::vector<std::string>(static_cast<size_t>(options.tiny.layers), "full_attention");
  if (options.kind != Foreign::kQwen2) {
    config["attention_bias"] = false;
    config["head_dim"] = options.tiny.head_dim > 0 ? options.tiny.head_dim
                                                   : options.tiny.hidden / options.tiny.heads;
  }
}

inline OrderedJson foreign_config(const ForeignCheckpoint& options) {
  OrderedJson config = tiny_config(options.tiny);
  for (const char* key : {"attention_bias", "mlp_bias", "rope_theta", "torch_dtype"}) {
    config.erase(key);
  }
  config["dtype"] = tiny_config(options.tiny)["torch_dtype"];
  set_family(options.kind, config);
  if (!is_mixture(options.kind)) {
    set_kin_keys(options, config);
    return config;
  }
  const bool is_mixtral = options.kind == Foreign::kMixtral;
  const bool is_qwen2 = options.kind == Foreign::kQwen2Moe;
  config["num_experts_per_tok"] = 2;
  config[is_qwen2 ? "num_experts" : "num_local_experts"] = options.experts;
  config["output_router_logits"] = false;
  config["router_aux_loss_coef"] = 0.02;
  if (is_mixtral) {
    config["head_dim"] = nullptr;
    config["router_jitter_noise"] = 0.0;
    return config;
  }
  config["bos_token_id"] = nullptr;
  config["norm_topk_prob"] = options.normalised;
  config["moe_intermediate_size"] = options.expert_width;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = options.dense_layers;
  config["use_sliding_window"] = false;
  if (!is_qwen2) {
    config["attention_bias"] = false;
    return config;
  }
  config["shared_expert_intermediate_size"] = options.shared_width;
  config["qkv_bias"] = options.biases;
  config["sliding_window"] = 0;
  config["max_window_layers"] = 28;
  config["layer_types"] =
      std::vector<std::string>(static_cast<size_t>(options.tiny.layers), "full_attention");
  return config;
}

// Returns the tensors that replace mlp.* of a dense layer.
inline std::vector<io::TensorInfo> foreign_mixture(const ForeignCheckpoint& options,
                                                   const std::string& prefix) {
  const bool mixtral = options.kind == Foreign::kMixtral;
  const io::DType dtype = options.tiny.dtype;
  const int64_t d = options.tiny.hidden;
  const int64_t f = mixtral ? options.tiny.intermediate : options.expert_width;
  const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  std::vector<io::TensorInfo> tensors = {{block + "gate.weight", dtype, {options.experts, d}}};
  for (int64_t expert = 0; expert < options.experts; ++expert) {
    const std::string name = fmt::format("{}experts.{}.", block, expert);
    tensors.push_back({name + (mixtral ? "w1.weight" : "gate_proj.weight"), dtype, {f, d}});
    tensors.push_back({name + (mixtral ? "w3.weight" : "up_proj.weight"), dtype, {f, d}});
    tensors.push_back({name + (mixtral ? "w2.weight" : "down_proj.weight"), dtype, {d, f}});
  }
  if (options.kind == Foreign::kQwen2Moe) {
    const int64_t s = options.shared_width;
    tensors.push_back({block + "shared_expert.gate_proj.weight", dtype, {s, d}});
    tensors.push_back({block + "shared_expert.up_proj.weight", dtype, {s, d}});
    tensors.push_back({block + "shared_expert.down_proj.weight", dtype, {d, s}});
    tensors.push_back({block + "shared_expert_gate.weight", dtype, {1, d}});
  }
  return tensors;
}

inline std::vector<io::TensorInfo> foreign_tensors(const ForeignCheckpoint& options) {
  std::vector<io::TensorInfo> tensors;
  for (const auto& info : tiny_tensors(options.tiny)) {
    const std::string layer = info.name.substr(0, info.name.find('.', 13) + 1);  // model.layers.N.
    const bool dense =
        !is_mixture(options.kind) || info.name.find(".mlp.") == std::string::npos ||
        std::any_of(options.dense_layers.begin(), options.dense_layers.end(),
                    [&](int64_t each) { return layer == fmt::format("model.layers.{}.", each); });
    if (dense) {
      tensors.push_back(info);
    } else if (info.name.ends_with(".gate_proj.weight")) {
      const auto mixture = foreign_mixture(options, layer);
      tensors.insert(tensors.end(), mixture.begin(), mixture.end());
    }
    const size_t at = info.name.find("_proj.weight");
    const bool biased = has_biases(options) && at != std::string::npos &&
                        std::string("qkv").find(info.name[at - 1]) != std::string::npos &&
                        info.name.find("self_attn") != std::string::npos;
    if (biased) {
      tensors.push_back({info.name.substr(0, at) + "_proj.bias", info.dtype, {info.shape.front()}});
    }
    if (has_head_norms(options.kind) && info.name.ends_with(".o_proj.weight")) {
      const int64_t head_dim = info.shape.back() / options.tiny.heads;
      tensors.push_back({layer + "self_attn.q_norm.weight", info.dtype, {head_dim}});
      tensors.push_back({layer + "self_attn.k_norm.weight", info.dtype, {head_dim}});
    }
  }
  return tensors;
}

inline void write_foreign_checkpoint(const std::filesystem::path& folder,
                                     const ForeignCheckpoint& options = {}) {
  std::filesystem::create_directories(folder);
  io::write_file(folder / "config.json", foreign_config(options).dump(2) + "\n");
  std::mt19937_64 random(options.tiny.seed);
  std::vector<io::TensorSource> sources;
  for (const auto& info : foreign_tensors(options)) {
    sources.push_back({info, [&options, &random, info](io::SafetensorsWriter& writer) {
                         io::TensorInfo matrix = info;  // biases have the distribution of matrices
                         if (info.name.ends_with(".bias")) {
                           matrix.shape = {1, info.shape.front()};
                         }
                         // Head norms far enough from 1 that their absence changes the output.
                         const bool is_head_norm = info.name.ends_with("q_norm.weight") ||
                                                   info.name.ends_with("k_norm.weight");
                         const double std = is_head_norm ? 5.0 : options.tiny.std;
                         const std::string bytes =
                             tensor_bytes(tiny_values(matrix, std, random), info.dtype);
                         writer.write(std::as_bytes(std::span(bytes)));
                       }});
  }
  io::write_tensors(folder, sources, options.tiny.shard_bytes);
}

}  // namespace moe::test
