#include "core/train/step/trainable.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/error.h"

namespace moe::train {
namespace {

const std::vector<std::string> kGroups = {"experts", "router", "attention",
                                          "dense",   "norms",  "embeddings"};

constexpr const char* kAdapters = "adapters";  // not a group of --train: adapters always train

std::string parameter_group(const std::string& name, const model::ModelConfig& config) {
  if (name.ends_with(".lora_a") || name.ends_with(".lora_b")) {
    return kAdapters;
  }
  for (const auto& [part, group] :  // a shared expert is used by every token, like a dense layer
       {std::pair("norm", "norms"),
        {".self_attn.", "attention"},
        {".mlp.router", "router"},
        {".mlp.shared_expert", "dense"}}) {
    if (name.find(part) != std::string::npos) {
      return group;
    }
  }
  if (name.find(".mlp.") != std::string::npos) {
    return config.is_moe_layer(layer_index(name)) ? "experts" : "dense";
  }
  return "embeddings";  // and the head
}

// Returns true if `text` matches `pattern`, in which * matches any text.
bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) {
    return text.empty();
  }
  if (pattern.front() == '*') {
    for (size_t skipped = 0; skipped <= text.size(); ++skipped) {
      if (matches(pattern.substr(1), text.substr(skipped))) {
        return true;
      }
    }
    return false;
  }
  return !text.empty() && text.front() == pattern.front() &&
         matches(pattern.substr(1), text.substr(1));
}

void check_words(const std::vector<std::string>& words) {
  constexpr int64_t kMaxStars = 4;  // matching time is exponential in their number
  for (const auto& word : words) {
    const auto stars = std::ranges::count(word, '*');
    USER_ERROR_IF(stars > kMaxStars, "--train '{}': a pattern may have {} stars, this has {}", word,
                  kMaxStars, stars);
    USER_ERROR_IF(stars == 0 && std::ranges::find(kGroups, word) == kGroups.end(),
                  "--train '{}' is unknown{}; known: {}, or a pattern like model.layers.0.*", word,
                  did_you_mean(word, kGroups), fmt::join(kGroups, ", "));
  }
}

}  // namespace

bool trains_router(const std::vector<std::string>& words, int64_t layer) {
  const auto names_router = [&](const std::string& word) {
    return word == "router" || matches(word, fmt::format("model.layers.{}.mlp.router", layer));
  };
  return words.empty() || std::ranges::any_of(words, names_router);
}

bool trains_router(const std::vector<std::string>& words, const model::ModelConfig& config) {
  return config.moe && std::ranges::any_of(config.moe->layers, [&](int64_t layer) {
           return trains_router(words, layer);
         });
}

bool is_gathered_in_bf16(const model::NamedParameter& parameter, const TrainSettings& settings) {
  const bool is_looked_up = parameter.name == "model.embed_tokens";
  return settings.on_cuda && settings.compute.precision == model::Precision::kBf16 &&
         parameter.is_dense_matrix && !is_looked_up;
}

bool has_bf16_copy(const model::NamedParameter& parameter, const model::ModelConfig& config,
                   const TrainSettings& settings) {
  const bool is_looked_up = parameter.name == "model.embed_tokens" && !config.tie_word_embeddings;
  return settings.on_cuda && settings.compute.precision == model::Precision::kBf16 &&
         settings.compute.recompute != model::Recompute::kLayer && parameter.tensor.dim() > 1 &&
         !is_looked_up && !parameter.shard.defined() &&
         parameter_group(parameter.name, config) != "router" &&
         !parameter.name.ends_with(".mlp.shared_expert_gate");
}

int64_t layer_index(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words) {
  check_words(words);
  std::vector<model::NamedParameter> all = model.parameters();
  const bool has_adapters = model.lora().rank > 0;
  if (words.empty() && !has_adapters) {
    return all;
  }
  std::vector<model::NamedParameter> chosen;
  std::set<std::string> used;
  for (const auto& parameter : all) {
    const std::string group = parameter_group(parameter.name, model.config());
    bool is_named = group == kAdapters || (words.empty() && group == "router");
    for (const auto& word : words) {
      if (word == group || matches(word, parameter.name)) {
        is_named = true;
        used.insert(word);
      }
    }
    if (is_named) {
      chosen.push_back(parameter);
    }
  }
  for (const auto& word : words) {
    USER_ERROR_IF(used.count(word) == 0,
                  "--train '{}' names nothing in this model, whose parameters go from {} to {}",
                  word, all.front().name, all.back().name);
  }
  return chosen;
}

}  // namespace moe::train
