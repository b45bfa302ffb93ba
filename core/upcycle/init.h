#pragma once
// Models with random weights from a config. Matrices and the embedding are N(0,
// initializer_range^2), routers N(0, router_std^2), norms 1, biases 0.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"

namespace moe::model {

struct InitSettings {
  std::filesystem::path config;  // a config.json, or a folder that holds one
  std::filesystem::path out;
  // E: turns a dense config into a mixture, as set by the next four members.
  std::optional<int64_t> experts;
  std::string layers = "all";
  // G: every expert is cut into G slices. `experts`, the router's k, max and cf, and ep_ranks count
  // whole experts; the folder has E G experts of width F / G, and a token uses k G of them.
  int64_t granularity = 1;
  route::RouterSettings router;
  std::optional<int64_t> ep_ranks;  // default: `experts`
  std::string dtype;                // float32, bfloat16 or float16; empty: the config's
  int64_t seed = 1;
  uint64_t shard_bytes = 5'000'000'000;
  // A tokenizer.model, a tokenizer.json or a folder of tokenizer files; empty: none.
  std::filesystem::path tokenizer;
  bool scaled_outputs = false;  // std of o_proj and down_proj: initializer_range / sqrt(2 L)
  bool same_experts = false;    // all experts of a layer have equal weights
  bool force = false;
};

struct InitPlan {
  Json source;  // the config as read; its unknown keys are kept
  ModelConfig config;
  std::vector<io::TensorSource> tensors;
  uint64_t bytes = 0;  // of tensor data
  ParameterCount parameters;
};

// Throws UserError if the config is invalid or the settings do not fit it.
InitPlan plan_init(const InitSettings& settings);

// Writes OUT, all or nothing: config.json, tensors, tokenizer files and init.json, which it
// returns. Calls `on_bytes` with the bytes of tensor data written so far. Throws UserError if OUT
// exists (unless `force`), if disk space is short, or if the tokenizer does not fit the vocabulary.
OrderedJson init(const InitPlan& plan, const InitSettings& settings,
                 const std::function<void(uint64_t)>& on_bytes = {});

}  // namespace moe::model
