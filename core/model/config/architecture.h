#pragma once
// Table of the supported architectures: their differences from LLaMA, and the defaults of absent
// keys of config.json (from transformers 5.23). No other code lists architecture names.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/model/config/config.h"

namespace moe::model {

// Presence of an optional part of the model. kByKey: if a key of config.json is true.
enum class Presence { kNever, kAlways, kByKey };

// Layers with sliding-window attention, if config.json has a window.
enum class WindowedLayers {
  kNone,        // no windows
  kAll,         // Mistral, Mixtral: if sliding_window is not null
  kAllIfUsed,   // Qwen3-MoE: if use_sliding_window
  kFromIndex,   // Qwen2, Qwen3: if use_sliding_window, from layer max_window_layers
  kEvenBefore,  // Qwen2-MoE: if use_sliding_window, even layers before max_window_layers
};

struct Architecture {
  std::string model_type, name;  // "qwen3", "Qwen3ForCausalLM"
  bool is_mixture = false;
  FolderForm form = FolderForm::kMoe;  // of a mixture of transformers; kMoe otherwise

  Presence qkv_bias = Presence::kNever;  // key "qkv_bias"
  bool qkv_bias_if_absent = false;
  Presence qk_norm = Presence::kNever;  // key "use_qk_norm", false if absent

  WindowedLayers windowed_layers = WindowedLayers::kNone;
  int64_t window_if_absent = 0;          // 0: no window
  bool reads_layer_types = false;        // layer_types replaces windowed_layers
  bool may_have_shared_experts = false;  // key "shared_expert_intermediate_size"
  int64_t shared_expert_width = 0;       // if that key is absent

  std::optional<int64_t> kv_heads = {};  // empty: as many as query heads
  std::optional<int64_t> head_dim = {};  // empty: hidden_size / heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool has_llama_tokens = false;  // default BOS 1 and EOS 2; otherwise no default
  int64_t experts = 0;            // 0: the key is required
  int64_t experts_per_token = 0, expert_width = 0;
};

// Adds an entry with a new model_type and name. Call it before other functions of the library.
void add_architecture(Architecture architecture);

// Returns the entry for the keys model_type and architectures[0] of `json`, one of which may be
// absent. Throws UserError that begins with `where` if both are absent, if one is malformed, or if
// no entry has them (the message lists all entries).
const Architecture& read_architecture(const Json& json, const std::string& where);

// Throws UserError for an unsupported key of `json` that changes the function of the weights.
void refuse_unsupported_keys(const Json& json, const Architecture& architecture,
                             const std::string& where);

// Returns the entry of a model_type, which must exist.
const Architecture& find_architecture(const std::string& model_type);

// Returns the architecture of transformers for a mixture in `form`. For kMoe it is the one with the
// same attention: Qwen3-MoE with `qk_norm`, else Qwen2-MoE.
const Architecture& stock_architecture(FolderForm form, bool qk_norm);

}  // namespace moe::model
