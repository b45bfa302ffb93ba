#pragma once
// The architectures whose folders are read, an entry each: what tells one from LLaMA, and what an
// absent key of its config.json means (the configuration classes of transformers 5.23). What must
// know an architecture by its name asks this table, and nothing else lists names.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/model/config/config.h"

namespace moe::model {

// Whether a model has a part: by its architecture alone, or as a key of config.json says.
enum class Presence { kNever, kAlways, kByKey };

// Which layers attend to the last `sliding_window` tokens alone, where a config has a window.
enum class WindowedLayers {
  kNone,        // the architecture knows no window
  kAll,         // Mistral, Mixtral: wherever sliding_window is not null
  kAllIfUsed,   // Qwen3-MoE: with use_sliding_window
  kFromIndex,   // Qwen2, Qwen3: the same, from max_window_layers on
  kEvenBefore,  // Qwen2-MoE: the same, the even ones before max_window_layers
};

struct Architecture {
  std::string model_type, name;  // "qwen3", "Qwen3ForCausalLM"
  bool is_mixture = false;
  FolderForm form = FolderForm::kMoe;  // how the folder of a stock mixture names things

  Presence qkv_bias = Presence::kNever;  // key "qkv_bias"
  bool qkv_bias_if_absent = false;
  Presence qk_norm = Presence::kNever;  // key "use_qk_norm", absent: none

  WindowedLayers windowed_layers = WindowedLayers::kNone;
  int64_t window_if_absent = 0;          // 0: none
  bool reads_layer_types = false;        // names windowed layers, in place of the rule
  bool may_have_shared_experts = false;  // key "shared_expert_intermediate_size"
  int64_t shared_expert_width = 0;       // where that is absent

  std::optional<int64_t> kv_heads = {};  // empty: as many as query heads
  std::optional<int64_t> head_dim = {};  // empty: hidden_size / heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool has_llama_tokens = false;  // BOS 1 and EOS 2; else none
  int64_t experts = 0;            // 0: the key must be there
  int64_t experts_per_token = 0, expert_width = 0;
};

// The entry that model_type names or, where that is absent, architectures. UserError, opened by
// `where`, when there is none; it lists all entries.
const Architecture& read_architecture(const Json& json, const std::string& where);

// The entry of a model_type that has one.
const Architecture& architecture_of(const std::string& model_type);

// The stock architecture of a mixture that is spelled as `form`; kMoe is the one of the stock
// mixtures that holds the attention: Qwen3-MoE with `qk_norm`, else Qwen2-MoE.
const Architecture& stock_mixture(FolderForm form, bool qk_norm);

}  // namespace moe::model
