#pragma once
// Configuration of a model, read from and written to config.json: the keys of transformers, and the
// project's own "moe" object (core/io/formats.md). Needs no LibTorch.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/router.h"

namespace moe::model {

struct Architecture;
struct ModelConfig;

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3 };
inline constexpr std::array kRopeTypeNames = {"default", "linear", "dynamic", "llama3"};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position_embeddings = 0;          // llama3

  bool operator==(const RopeConfig&) const = default;
};

// Naming convention of an MoE checkpoint: tensor names and keys of config.json. New mixtures have
// the form kMoe; folders of other tools keep theirs.
enum class FolderForm { kMoe, kQwen2Moe, kMixtral, kQwen3Moe };

struct MoeConfig {
  FolderForm form = FolderForm::kMoe;
  std::vector<int64_t> layers;      // indices of the MoE layers, ascending
  int64_t experts = 0;              // E
  int64_t expert_width = 0;         // F of one expert
  int64_t shared_expert_width = 0;  // 0: no shared expert
  int64_t granularity = 1;
  route::RouterSettings router;
  double gate_scale = 1.0;
  int64_t ep_ranks = 1;  // W, logical ranks
  double lb_coef = 0, entropy_coef = 0, z_coef = 0, seq_lb_coef = 0;
  std::optional<double> lambda;  // ReLU: value for the next training step; empty: router.lambda0
  double router_std = 0.02;
  int64_t router_seed = 0;
  double router_jitter = 0;  // Mixtral's router_jitter_noise; not applied by this project
  std::string source_name, source_sha256;  // the dense parent; empty for a model from scratch
};

// Returns the form in which a mixture is written: kMoe if the router has its own model_type
// (route::own_architecture()), if gate_scale is not 1, or if the gates of a kMixtral do not sum to
// 1; else moe.form.
FolderForm written_form(const MoeConfig& moe);
FolderForm written_form(const ModelConfig& config);  // kMoe for a dense model

// Returns the architecture under which a mixture is written: one of transformers if transformers
// computes the same function, apart from capacity (core/io/formats.md), else one that it refuses.
const Architecture& written_architecture(const MoeConfig& moe, bool qk_norm);

struct ModelConfig {
  std::string model_type = "llama";  // as read; a dense model is written with the same type
  int64_t vocab_size = 0;            // V
  int64_t hidden_size = 0;           // D
  int64_t intermediate_size = 0;     // F of a dense layer
  int64_t layers = 0;
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // A
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 0;  // tokens; 0 if no layer has a window below max_position_embeddings
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // queries, keys and values have biases (Qwen2, Qwen2-MoE)
  bool qk_norm = false;   // RMSNorm of every query and key head before RoPE (Qwen3)
  double initializer_range = 0.02;
  RopeConfig rope;
  std::string dtype = "float32";  // torch_dtype / dtype: float32, bfloat16 or float16
  std::optional<MoeConfig> moe;

  bool is_moe_layer(int64_t layer) const;
  // Returns the sliding window if there is one, else max_position_embeddings, in tokens.
  int64_t longest_sequence() const;
};

// Reads and checks a config.json. Absent keys have the defaults of transformers (architecture.h).
// Throws UserError that begins with `where` for missing, invalid and unsupported values.
ModelConfig parse_config(const Json& json, const std::string& where);

// Reads `path`, a config.json or the folder that holds it. Throws UserError.
ModelConfig read_config(const std::filesystem::path& path);

// Returns the config.json of `config`: the keys of `parent`, overridden by those of `config`. A
// mixture gets the model_type of written_architecture() and the "moe" object.
OrderedJson config_json(const ModelConfig& config, const Json& parent);

// Returns the MoE layers by the keys mlp_only_layers and decoder_sparse_step, ascending. Throws
// UserError that begins with `where`.
std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers);

}  // namespace moe::model
