#include "core/model/config/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <iterator>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

std::vector<Architecture> dense_architectures() {
  return {
      {.model_type = "llama", .name = "LlamaForCausalLM", .has_llama_tokens = true},
      {.model_type = "mistral",
       .name = "MistralForCausalLM",
       .windowed_layers = WindowedLayers::kAll,
       .window_if_absent = 4096,
       .kv_heads = 8,
       .max_position_embeddings = 131072,
       .has_llama_tokens = true},
      {.model_type = "qwen2",
       .name = "Qwen2ForCausalLM",
       .qkv_bias = Presence::kAlways,
       .windowed_layers = WindowedLayers::kFromIndex,
       .window_if_absent = 4096,
       .reads_layer_types = true,
       .kv_heads = 32,
       .max_position_embeddings = 32768},
      {.model_type = "qwen3",
       .name = "Qwen3ForCausalLM",
       .qk_norm = Presence::kAlways,
       .windowed_layers = WindowedLayers::kFromIndex,
       .window_if_absent = 4096,
       .reads_layer_types = true,
       .kv_heads = 32,
       .head_dim = 128,
       .max_position_embeddings = 32768},
  };
}

std::vector<Architecture> stock_mixtures() {
  return {
      {.model_type = "mixtral",
       .name = "MixtralForCausalLM",
       .is_mixture = true,
       .form = FolderForm::kMixtral,
       .windowed_layers = WindowedLayers::kAll,
       .kv_heads = 8,
       .max_position_embeddings = 131072,
       .rms_norm_eps = 1e-5,
       .rope_theta = 1e6,
       .has_llama_tokens = true,
       .experts = 8,
       .experts_per_token = 2},
      {.model_type = "qwen2_moe",
       .name = "Qwen2MoeForCausalLM",
       .is_mixture = true,
       .form = FolderForm::kQwen2Moe,
       .qkv_bias = Presence::kByKey,
       .qkv_bias_if_absent = true,
       .windowed_layers = WindowedLayers::kEvenBefore,
       .window_if_absent = 4096,
       .reads_layer_types = true,
       .may_have_shared_experts = true,
       .shared_expert_width = 5632,
       .kv_heads = 16,
       .max_position_embeddings = 32768,
       .experts = 60,
       .experts_per_token = 4,
       .expert_width = 1408},
      {.model_type = "qwen3_moe",
       .name = "Qwen3MoeForCausalLM",
       .is_mixture = true,
       .form = FolderForm::kQwen3Moe,
       .qk_norm = Presence::kAlways,
       .windowed_layers = WindowedLayers::kAllIfUsed,
       .window_if_absent = 4096,
       .kv_heads = 4,
       .max_position_embeddings = 32768,
       .experts = 128,
       .experts_per_token = 8,
       .expert_width = 768},
  };
}

// Returns the architecture of a mixture that transformers must refuse.
Architecture own_architecture(const std::string& model_type, const std::string& name) {
  return {.model_type = model_type,
          .name = name,
          .is_mixture = true,
          .qkv_bias = Presence::kByKey,
          .qk_norm = Presence::kByKey,
          .reads_layer_types = true,
          .may_have_shared_experts = true};
}

// Returns all entries. Adds those of router families that were added since the last call.
std::deque<Architecture>& architectures() {
  static size_t families = 0;  // number of router families that were visited
  const auto add_families = [](std::deque<Architecture>& all) {
    for (; families < route::router_families().size(); ++families) {
      if (const auto& own = route::router_families()[families].own; !own.model_type.empty()) {
        all.push_back(own_architecture(own.model_type, own.name));
      }
    }
  };
  static std::deque<Architecture> entries = [&] {  // the first calls may be concurrent
    std::deque<Architecture> all;
    std::ranges::move(dense_architectures(), std::back_inserter(all));
    std::ranges::move(stock_mixtures(), std::back_inserter(all));
    add_families(all);
    all.push_back(own_architecture("moe_scaled", "MoeScaledForCausalLM"));
    return all;
  }();
  add_families(entries);
  return entries;
}

[[noreturn]] void refuse_architecture(const std::string& name, const std::string& type,
                                      const std::string& where) {
  std::vector<std::string> stock, own;
  for (const auto& entry : architectures()) {
    if (entry.is_mixture && entry.form == FolderForm::kMoe) {
      own.push_back(entry.model_type);
    } else {
      stock.push_back(fmt::format("{} ({})", entry.name, entry.model_type));
    }
  }
  const std::string last = own.back();
  own.pop_back();
  throw UserError(
      "{}: architecture '{}' with model_type '{}' is not supported; supported are {}, and {} or {} "
      "as moe writes them",
      where, name, type, fmt::join(stock, ", "), fmt::join(own, ", "), last);
}

}  // namespace

void add_architecture(Architecture architecture) {
  architectures().push_back(std::move(architecture));
}

const Architecture& read_architecture(const Json& json, const std::string& where) {
  const std::string type = get_string(json, "model_type", where, "");
  std::string name;
  if (has_value(json, "architectures")) {
    const Json& list = json.at("architectures");
    USER_ERROR_IF(!list.is_array() || list.empty() || !list.front().is_string(),
                  "{}: architectures must be a list of names, such as [\"LlamaForCausalLM\"]",
                  where);
    name = list.front().get<std::string>();
  }
  USER_ERROR_IF(
      type.empty() && name.empty(),
      "{}: model_type and architectures are missing; a LLaMA folder has model_type \"llama\"",
      where);
  for (const auto& entry : architectures()) {
    if ((type.empty() || type == entry.model_type) && (name.empty() || name == entry.name)) {
      return entry;
    }
  }
  refuse_architecture(name, type, where);
}

void refuse_unsupported_keys(const Json& json, const Architecture& architecture,
                             const std::string& where) {
  const std::string activation = get_string(json, "hidden_act", where, "silu");
  USER_ERROR_IF(activation != "silu", "{}: hidden_act '{}' is not supported; LLaMA's is silu",
                where, activation);
  const std::vector<std::pair<const char*, bool>> keys = {
      {"attention_bias", false},
      {"mlp_bias", false},
      {"qkv_bias", architecture.qkv_bias != Presence::kNever},
      {"use_qk_norm", architecture.qk_norm != Presence::kNever},
      {"use_sliding_window", architecture.windowed_layers != WindowedLayers::kNone}};
  for (const auto& [key, is_supported] : keys) {
    USER_ERROR_IF(!is_supported && get_bool(json, key, where, false),
                  "{}: {} is true, which is not supported", where, key);
  }
  USER_ERROR_IF(has_value(json, "quantization_config"),
                "{}: quantization_config is set; use a folder in float32, bfloat16 or float16",
                where);
}

const Architecture& find_architecture(const std::string& model_type) {
  const auto& all = architectures();
  const auto entry = std::ranges::find(all, model_type, &Architecture::model_type);
  MOE_CHECK(entry != all.end(), "model_type {}", model_type);
  return *entry;
}

const Architecture& stock_architecture(FolderForm form, bool qk_norm) {
  if (form == FolderForm::kMixtral) {
    return find_architecture("mixtral");
  }
  const bool is_qwen3 = form == FolderForm::kQwen3Moe || (form == FolderForm::kMoe && qk_norm);
  return find_architecture(is_qwen3 ? "qwen3_moe" : "qwen2_moe");
}

}  // namespace moe::model
