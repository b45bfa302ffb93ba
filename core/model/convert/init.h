#pragma once
// Random weights from a config: the from-scratch models of the top-p paper and of ReMoE, and
// synthetic folders of any size. All matrices and the embedding are N(0, initializer_range^2),
// routers N(0, router_std^2), norms 1. What adds to the residual stream may be drawn smaller, as
// Megatron-LM does.

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
  // A dense config becomes a mixture when `experts` is given; the next four then say which.
  std::optional<int64_t> experts;
  std::string layers = "all";
  // G, the granularity: every expert is cut into G. `experts`, the router's k, max and cf, and
  // ep_ranks are said as for G = 1; the folder has E G experts of width F / G, and a token k G of
  // them (the same share of slots each).
  int64_t granularity = 1;
  route::RouterSettings router;
  std::optional<int64_t> ep_ranks;  // default: `experts`, so that G cuts experts and not machines
  std::string dtype;                // float32, bfloat16 or float16; empty: the config's
  int64_t seed = 1;
  uint64_t shard_bytes = 5'000'000'000;
  std::filesystem::path
      tokenizer;  // a tokenizer.model, tokenizer.json or folder of tokenizer files; empty: none
  bool scaled_outputs = false;  // o_proj and down_proj are drawn with initializer_range / sqrt(2 L)
  bool same_experts = false;  // every expert of a layer gets the same values (core/model/README.md)
  bool force = false;
};

struct InitPlan {
  Json source;  // the config as read, whose unknown keys are kept
  ModelConfig config;
  std::vector<io::TensorSource> tensors;
  uint64_t bytes = 0;  // of tensor data
  ParameterCount parameters;
};

// UserError: a config that parse_config refuses, experts for a config that has its own, layers,
// router or granularity out of range, a width that granularity does not divide.
InitPlan plan_init(const InitSettings& settings);

// Writes OUT, all or nothing: config.json, tensors, tokenizer files, init.json. Returns what
// init.json holds. UserError: OUT is there already, not enough space, a tokenizer that is missing
// or larger than the vocabulary.
OrderedJson init(const InitPlan& plan, const InitSettings& settings,
                 const std::function<void(uint64_t)>& on_bytes = {});

}  // namespace moe::model
