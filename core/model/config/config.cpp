// Reads config.json: LLaMA's keys (the architectures, rope and "moe" have files of their own).
// Whatever would change the function that the weights compute and is not computed here is refused
// by its name, never ignored. Sizes are bounded so that no product of them overflows later.

#include "core/model/config/config.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr double kMaxParameters = 0x1p50;  // so that bytes and sums stay far from 2^63

// Whether the model has a part that `key` may speak of.
bool has_part(Presence presence, const Json& json, const std::string& key, const std::string& where,
              bool if_absent) {
  return presence == Presence::kAlways ||
         (presence == Presence::kByKey && get_bool(json, key, where, if_absent));
}

void refuse_what_is_not_computed(const Json& json, const Architecture& architecture,
                                 const std::string& where) {
  const std::string activation = get_string(json, "hidden_act", where, "silu");
  if (activation != "silu") {
    throw UserError("{}: hidden_act '{}' is not supported; LLaMA's is silu", where, activation);
  }
  const std::vector<std::pair<const char*, bool>> keys = {
      {"attention_bias", false},
      {"mlp_bias", false},
      {"qkv_bias", architecture.qkv_bias != Presence::kNever},
      {"use_qk_norm", architecture.qk_norm != Presence::kNever},
      {"use_sliding_window", architecture.windowed_layers != WindowedLayers::kNone}};
  for (const auto& [key, is_computed] : keys) {
    if (!is_computed && get_bool(json, key, where, false)) {
      throw UserError("{}: {} is true; such models are not supported, only those without it", where,
                      key);
    }
  }
  if (given(json, "quantization_config")) {
    throw UserError(
        "{}: quantization_config is set; fetch or make the folder in float32, bfloat16 or float16",
        where);
  }
}

std::string read_dtype(const Json& json, const std::string& where) {
  std::string name =
      get_string(json, "dtype", where, get_string(json, "torch_dtype", where, "float32"));
  if (name.rfind("torch.", 0) == 0) {
    name = name.substr(6);
  }
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    throw UserError("{}: dtype '{}' is not supported; known are float32, bfloat16 and float16",
                    where, name);
  }
  return name;
}

void read_attention(const Json& json, const Architecture& architecture, const std::string& where,
                    ModelConfig& config) {
  config.heads = read_size(json, "num_attention_heads", where);
  const bool written = json.contains("num_key_value_heads");  // null means as many as query heads
  config.kv_heads =
      read_size_or(json, "num_key_value_heads", where,
                   written ? config.heads : architecture.kv_heads.value_or(config.heads));
  if (config.heads % config.kv_heads != 0) {
    throw UserError("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", where,
                    config.heads, config.kv_heads);
  }
  if (!given(json, "head_dim") && !architecture.head_dim &&
      config.hidden_size % config.heads != 0) {
    throw UserError(
        "{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
        where, config.hidden_size, config.heads);
  }
  config.head_dim = read_size_or(json, "head_dim", where,
                                 architecture.head_dim.value_or(config.hidden_size / config.heads));
  if (config.head_dim % 2 != 0) {
    throw UserError("{}: head_dim {} is odd; rotary positions turn pairs, it must be even", where,
                    config.head_dim);
  }
  config.qkv_bias =
      has_part(architecture.qkv_bias, json, "qkv_bias", where, architecture.qkv_bias_if_absent);
  config.qk_norm = has_part(architecture.qk_norm, json, "use_qk_norm", where, false);
  if (config.qkv_bias && config.qk_norm) {
    throw UserError("{}: qkv_bias and use_qk_norm are both true, which no stock model has: set one",
                    where);
  }
}

void read_mixture(const Json& json, const Architecture& architecture, const std::string& where,
                  ModelConfig& config) {
  config.moe = given(json, "moe") ? read_moe(json, architecture, where, config)
                                  : read_stock_moe(json, architecture, where, config);
  config.moe->shared_expert_width = read_shared_expert(json, architecture, where, config.qk_norm);
  if (architecture.form == FolderForm::kMixtral) {
    config.moe->router_jitter = finite(get_double(json, "router_jitter_noise", where, 0),
                                       "router_jitter_noise", where, true);
  }
}

void check_total_size(const ModelConfig& config, const std::string& where) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double vocabulary = 2.0 * static_cast<double>(config.vocab_size) * hidden;
  const double attention = 2.0 * hidden * static_cast<double>(config.heads + config.kv_heads) *
                           static_cast<double>(config.head_dim);
  const double dense = 3.0 * hidden * static_cast<double>(config.intermediate_size);
  double total =
      vocabulary + static_cast<double>(config.layers) * (attention + dense + 2.0 * hidden);
  if (config.moe) {
    const double experts = static_cast<double>(config.moe->experts) *
                           (3.0 * static_cast<double>(config.moe->expert_width) + 1.0);
    const double shared = 3.0 * static_cast<double>(config.moe->shared_expert_width) + 1.0;
    total += static_cast<double>(config.moe->layers.size()) * hidden * (experts + shared);
  }
  if (total > kMaxParameters) {
    throw UserError(
        "{}: these sizes make {:.3g} parameters, beyond the limit of 2^50; one of them must be "
        "wrong",
        where, total);
  }
}

}  // namespace

bool ModelConfig::is_moe_layer(int64_t layer) const {
  return moe && std::binary_search(moe->layers.begin(), moe->layers.end(), layer);
}

int64_t ModelConfig::longest_sequence() const {
  return sliding_window > 0 ? sliding_window : max_position_embeddings;
}

ModelConfig parse_config(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: a config must be a JSON object, not {}", where, json.type_name());
  }
  const Architecture& architecture = read_architecture(json, where);
  if (architecture.is_mixture && architecture.form == FolderForm::kMoe && !given(json, "moe")) {
    throw UserError("{}: a {} folder without the \"moe\" object that moe writes into it", where,
                    architecture.model_type);
  }
  refuse_what_is_not_computed(json, architecture, where);
  ModelConfig config;
  config.model_type = architecture.model_type;
  config.vocab_size = read_size(json, "vocab_size", where);
  config.hidden_size = read_size(json, "hidden_size", where);
  config.intermediate_size = read_size(json, "intermediate_size", where);
  config.layers = read_size(json, "num_hidden_layers", where, kMaxLayers);
  read_attention(json, architecture, where, config);
  config.max_position_embeddings =
      read_size_or(json, "max_position_embeddings", where, architecture.max_position_embeddings);
  config.rms_norm_eps = finite(get_double(json, "rms_norm_eps", where, architecture.rms_norm_eps),
                               "rms_norm_eps", where, false);
  config.tie_word_embeddings = get_bool(json, "tie_word_embeddings", where, false);
  config.initializer_range =
      finite(get_double(json, "initializer_range", where, 0.02), "initializer_range", where, true);
  config.rope = read_rope(json, where, architecture.rope_theta);
  config.dtype = read_dtype(json, where);
  refuse_stock_extras(json, architecture, where);
  config.sliding_window = read_short_window(json, architecture, where, config);
  if (architecture.is_mixture || given(json, "moe")) {
    read_mixture(json, architecture, where, config);
  }
  check_total_size(config, where);
  return config;
}

}  // namespace moe::model
