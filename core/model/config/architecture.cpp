#include "core/model/config/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"
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

std::vector<Architecture> stock_architectures() {
  std::vector<Architecture> all = dense_architectures();
  const std::vector<Architecture> mixtures = stock_mixtures();
  all.insert(all.end(), mixtures.begin(), mixtures.end());
  return all;
}

// A mixture that stock tools must refuse. Its parent's BOS and EOS stand in its config.
Architecture own_architecture(const std::string& model_type, const std::string& name) {
  return {.model_type = model_type,
          .name = name,
          .is_mixture = true,
          .qkv_bias = Presence::kByKey,
          .qk_norm = Presence::kByKey,
          .reads_layer_types = true,
          .may_have_shared_experts = true};
}

std::vector<Architecture> own_architectures() {
  std::vector<Architecture> own;
  const auto add = [&](const route::OwnArchitecture& architecture) {
    if (!architecture.model_type.empty()) {
      own.push_back(own_architecture(architecture.model_type, architecture.name));
    }
  };
  for (const auto& family : route::router_families()) {
    add(family.own);
  }
  own.push_back(own_architecture("moe_scaled", "MoeScaledForCausalLM"));
  return own;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = [] {
    std::vector<Architecture> list = stock_architectures();
    const std::vector<Architecture> own = own_architectures();
    list.insert(list.end(), own.begin(), own.end());
    return list;
  }();
  return all;
}

[[noreturn]] void refuse_architecture(const std::string& name, const std::string& type,
                                      const std::string& where) {
  std::vector<std::string> stock, own;
  for (const auto& entry : stock_architectures()) {
    stock.push_back(fmt::format("{} ({})", entry.name, entry.model_type));
  }
  for (const auto& entry : own_architectures()) {
    own.push_back(entry.model_type);
  }
  const std::string last = own.back();
  own.pop_back();
  throw UserError(
      "{}: architecture '{}' with model_type '{}' is not read; known are {}, and {} or {} as moe "
      "writes them",
      where, name, type, fmt::join(stock, ", "), fmt::join(own, ", "), last);
}

}  // namespace

const Architecture& read_architecture(const Json& json, const std::string& where) {
  const std::string type = get_string(json, "model_type", where, "");
  std::string name;
  if (given(json, "architectures")) {
    const Json& list = json.at("architectures");
    if (!list.is_array() || list.empty() || !list.front().is_string()) {
      throw UserError("{}: architectures must be a list of names, such as [\"LlamaForCausalLM\"]",
                      where);
    }
    name = list.front().get<std::string>();
  }
  if (type.empty() && name.empty()) {
    throw UserError(
        "{}: neither model_type nor architectures is there; a LLaMA folder has model_type "
        "\"llama\"",
        where);
  }
  for (const auto& entry : architectures()) {
    if ((type.empty() || type == entry.model_type) && (name.empty() || name == entry.name)) {
      return entry;
    }
  }
  refuse_architecture(name, type, where);
}

const Architecture& architecture_of(const std::string& model_type) {
  const auto& all = architectures();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Architecture& entry) {
    return entry.model_type == model_type;
  });
  MOE_CHECK(found != all.end(), "model_type {}", model_type);
  return *found;
}

const Architecture& stock_mixture(FolderForm form, bool qk_norm) {
  const FolderForm stock = form != FolderForm::kMoe ? form
                           : qk_norm                ? FolderForm::kQwen3Moe
                                                    : FolderForm::kQwen2Moe;
  const auto& all = architectures();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Architecture& entry) {
    return entry.is_mixture && entry.form == stock;
  });
  MOE_CHECK(found != all.end(), "form {}", static_cast<int>(stock));
  return *found;
}

}  // namespace moe::model
