#pragma once
// What config.json says of the model: LLaMA's keys, those of its kin (architecture.h) and of the
// stock mixtures, and our "moe" object (core/io/formats.md). No tensors.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/router_settings.h"

namespace moe::model {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position_embeddings = 0;          // llama3
};

// How the folder of a mixture spells itself: the names of its tensors and the keys of its config.
// kMoe is what moe makes; the others were made by other tools and are written back as they came.
enum class FolderForm { kMoe, kQwen2Moe, kMixtral, kQwen3Moe };

struct MoeConfig {
  FolderForm form = FolderForm::kMoe;
  std::vector<int64_t> layers;      // which layers are MoE, ascending
  int64_t experts = 0;              // E
  int64_t expert_width = 0;         // F of one expert
  int64_t shared_expert_width = 0;  // of the expert that every token goes to; 0: there is none
  int64_t granularity = 1;
  route::RouterSettings router;
  double gate_scale = 1.0;
  int64_t ep_ranks = 1;  // W, logical ranks
  double lb_coef = 0, entropy_coef = 0, z_coef = 0, seq_lb_coef = 0;
  std::optional<double> lambda;  // ReLU: of the next step of training; empty: router.lambda0
  double router_std = 0.02;
  int64_t router_seed = 0;
  double router_jitter = 0;  // Mixtral's router_jitter_noise: what stock training adds, we never
  std::string source_name, source_sha256;  // the dense parent; empty for a model from scratch
};

// The form in which a mixture can be written: its own, or kMoe where that has no words for its
// router (a Mixtral whose weights are not renormalised). ReLU and gate scales are always kMoe.
FolderForm written_form(const MoeConfig& moe);

struct ModelConfig {
  std::string model_type = "llama";  // as it was read; a dense model is written as this one again
  int64_t vocab_size = 0;            // V
  int64_t hidden_size = 0;           // D
  int64_t intermediate_size = 0;     // F of a dense layer
  int64_t layers = 0;
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // A
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 0;  // tokens; 0 unless it is shorter than max_position_embeddings
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // queries, keys and values have biases (Qwen2, Qwen2-MoE)
  bool qk_norm = false;   // every query and key head is RMS-normed before it is rotated (Qwen3)
  double initializer_range = 0.02;
  RopeConfig rope;
  std::string dtype = "float32";  // torch_dtype / dtype: float32, bfloat16 or float16
  std::optional<MoeConfig> moe;

  bool is_moe_layer(int64_t layer) const;
  // Tokens. Attention sees all of a sequence, as windowed layers do up to the window's length.
  int64_t longest_sequence() const;
};

// Reads and checks a config: LLaMA, Mistral, Qwen2, Qwen3, Mixtral, Qwen2-MoE, Qwen3-MoE, and
// what `moe` writes; an absent key means what transformers takes for that
// model_type (architecture.h). UserError, opened by `where`, for a missing key, an impossible
// number, an unknown architecture, activation or rope type (named), biases of other kinds.
ModelConfig parse_config(const Json& json, const std::string& where);

// The config.json of `config`: every key of `parent` kept, ours set over them. Dense: of
// config.model_type; with moe: by written_form() mixtral, qwen2_moe or qwen3_moe, moe_relu for ReLU
// routers, moe_scaled for gate scales (core/io/formats.md); always with the "moe" object.
OrderedJson config_json(const ModelConfig& config, const Json& parent);

}  // namespace moe::model
