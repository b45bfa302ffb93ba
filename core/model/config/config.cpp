// Reads config.json: LLaMA's keys (rope and "moe" have files of their own). Whatever would change
// the function that the weights compute and is not computed here is refused by its name, never
// ignored. Sizes are bounded so that no product of them overflows later.

#include "core/model/config/config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr double kMaxParameters = 0x1p50;  // so that bytes and sums stay far from 2^63

// The kind of folder, by model_type or, where that is absent, by architecture.
std::string read_model_type(const Json& json, const std::string& where) {
  const std::string type = get_string(json, "model_type", where, "");
  std::string architecture;
  if (given(json, "architectures")) {
    const Json& list = json.at("architectures");
    if (!list.is_array() || list.empty() || !list.front().is_string()) {
      throw UserError("{}: architectures must be a list of names, such as [\"LlamaForCausalLM\"]",
                      where);
    }
    architecture = list.front().get<std::string>();
  }
  if (type.empty() && architecture.empty()) {
    throw UserError(
        "{}: neither model_type nor architectures is there; a LLaMA folder has model_type "
        "\"llama\"",
        where);
  }
  std::vector<std::pair<std::string, std::string>> known = {{"llama", "LlamaForCausalLM"},
                                                            {"mixtral", "MixtralForCausalLM"},
                                                            {"qwen2_moe", "Qwen2MoeForCausalLM"}};
  std::vector<std::string> own;
  for (const auto& family : route::router_families()) {
    if (!family.own_model_type.empty()) {
      known.emplace_back(family.own_model_type, family.own_architecture);
      own.push_back(family.own_model_type);
    }
  }
  known.emplace_back("moe_scaled", "MoeScaledForCausalLM");
  for (const auto& [name, its_architecture] : known) {
    if ((type.empty() || type == name) &&
        (architecture.empty() || architecture == its_architecture)) {
      return name;
    }
  }
  throw UserError(
      "{}: architecture '{}' with model_type '{}' is not read; known are LlamaForCausalLM (llama), "
      "MixtralForCausalLM (mixtral), Qwen2MoeForCausalLM (qwen2_moe), and {} or moe_scaled as moe "
      "writes them",
      where, architecture, type, fmt::join(own, ", "));
}

bool may_have_qkv_bias(const std::string& type) { return type != "llama" && type != "mixtral"; }

void refuse_what_is_not_computed(const Json& json, const std::string& type,
                                 const std::string& where) {
  const std::string activation = get_string(json, "hidden_act", where, "silu");
  if (activation != "silu") {
    throw UserError("{}: hidden_act '{}' is not supported; LLaMA's is silu", where, activation);
  }
  for (const char* key : {"attention_bias", "mlp_bias", "qkv_bias", "use_sliding_window"}) {
    if (key == std::string("qkv_bias") && may_have_qkv_bias(type)) {
      continue;
    }
    if (get_bool(json, key, where, false)) {
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

void read_attention(const Json& json, const TypeDefaults& defaults, const std::string& where,
                    ModelConfig& config) {
  config.heads = read_size(json, "num_attention_heads", where);
  const bool written = json.contains("num_key_value_heads");  // null means as many as query heads
  config.kv_heads = read_size_or(json, "num_key_value_heads", where,
                                 written ? config.heads : defaults.kv_heads.value_or(config.heads));
  if (config.heads % config.kv_heads != 0) {
    throw UserError("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", where,
                    config.heads, config.kv_heads);
  }
  if (!given(json, "head_dim") && config.hidden_size % config.heads != 0) {
    throw UserError(
        "{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
        where, config.hidden_size, config.heads);
  }
  config.head_dim = read_size_or(json, "head_dim", where, config.hidden_size / config.heads);
  if (config.head_dim % 2 != 0) {
    throw UserError("{}: head_dim {} is odd; rotary positions turn pairs, it must be even", where,
                    config.head_dim);
  }
}

void read_mixture(const Json& json, const std::string& type, const std::string& where,
                  ModelConfig& config) {
  refuse_stock_extras(json, type, where, config.max_position_embeddings);
  config.moe = given(json, "moe") ? read_moe(json, type, where, config)
                                  : read_stock_moe(json, type, where, config);
  if (type == "mixtral") {
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
    total += static_cast<double>(config.moe->layers.size()) *
             static_cast<double>(config.moe->experts) * hidden *
             (3.0 * static_cast<double>(config.moe->expert_width) + 1.0);
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

ModelConfig parse_config(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: a config must be a JSON object, not {}", where, json.type_name());
  }
  const std::string type = read_model_type(json, where);
  if (type.rfind("moe_", 0) == 0 && !given(json, "moe")) {
    throw UserError("{}: a {} folder without the \"moe\" object that moe writes into it", where,
                    type);
  }
  refuse_what_is_not_computed(json, type, where);
  const TypeDefaults& defaults = type_defaults(type);
  ModelConfig config;
  config.vocab_size = read_size(json, "vocab_size", where);
  config.hidden_size = read_size(json, "hidden_size", where);
  config.intermediate_size = read_size(json, "intermediate_size", where);
  config.layers = read_size(json, "num_hidden_layers", where, kMaxLayers);
  read_attention(json, defaults, where, config);
  config.max_position_embeddings =
      read_size_or(json, "max_position_embeddings", where, defaults.max_position_embeddings);
  config.rms_norm_eps = finite(get_double(json, "rms_norm_eps", where, defaults.rms_norm_eps),
                               "rms_norm_eps", where, false);
  config.tie_word_embeddings = get_bool(json, "tie_word_embeddings", where, false);
  config.qkv_bias = may_have_qkv_bias(type) && get_bool(json, "qkv_bias", where, defaults.qkv_bias);
  config.initializer_range =
      finite(get_double(json, "initializer_range", where, 0.02), "initializer_range", where, true);
  config.rope = read_rope(json, where, defaults.rope_theta);
  config.dtype = read_dtype(json, where);
  if (type != "llama" || given(json, "moe")) {
    read_mixture(json, type, where, config);
  }
  check_total_size(config, where);
  return config;
}

}  // namespace moe::model
