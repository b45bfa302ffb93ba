#pragma once
// Inspection of model folders: inspect() reads config and tensor headers; expert_distances() reads
// the weights and measures how far experts have diverged.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"
#include "core/upcycle/verify.h"

namespace moe::model {

struct Inspection {
  std::string folder, model_type;
  ModelConfig config;
  ParameterCount parameters;
  std::vector<std::pair<std::string, uint64_t>> bytes_by_dtype;  // "BF16" -> bytes, by name
  uint64_t bytes = 0;                                            // of tensor data
  uint64_t bytes_per_rank = 0;         // per logical rank: all non-experts, and E / W experts
  std::string tokenizer;               // tokenizer.model, tokenizer.json or none
  std::vector<std::string> stock;      // sentences: parts that transformers computes like moe
  std::vector<std::string> needs_moe;  // sentences: parts that only moe computes
  StoredVerdict function;              // stored_verdict() of a mixture
};

// Inspects a folder. Throws UserError if its config or its tensors are invalid.
Inspection inspect(const std::filesystem::path& folder);

OrderedJson to_json(const Inspection& inspection);

// Returns "0-2, 5" for {0, 1, 2, 5} and "none" for {}.
std::string layer_ranges(const std::vector<int64_t>& layers);

// Cosine similarities of the experts of one MoE layer, as concatenations of gate, up and down. With
// granularity, an expert is compared only with equal slices of a feed-forward.
struct LayerDistances {
  int64_t layer = 0;
  double between_experts = 1;  // mean over pairs; 1 if there are none
  // Mean over experts of the cosine to the expert of the same index or to the dense feed-forward.
  double to_other = 1;
  double between_routers = 1;             // as between_experts, of router rows
  std::optional<double> router_to_other;  // as to_other, of router rows; empty if dense in `other`
};

// Compares each MoE layer of `mixture`, ascending, with the same layer of `other`, a mixture or a
// dense model. Throws UserError that names both folders if `mixture` is dense or the sizes differ.
std::vector<LayerDistances> expert_distances(const io::Checkpoint& mixture,
                                             const io::Checkpoint& other);

OrderedJson to_json(const std::vector<LayerDistances>& layers);

}  // namespace moe::model
