#pragma once
// What a folder holds, from its config and its tensors' headers: sizes, layers, router, the verdict
// stored with an upcycled one, and what of it stock tools honour (core/io/formats.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"
#include "core/model/convert/verify.h"

namespace moe::model {

struct Inspection {
  std::string folder, model_type;
  ModelConfig config;
  ParameterCount parameters;
  std::vector<std::pair<std::string, uint64_t>> bytes_by_dtype;  // "BF16" -> bytes, by name
  uint64_t bytes = 0;                                            // of tensor data
  uint64_t bytes_per_rank =
      0;  // on one of ep_ranks ranks: all that is shared and its part of the experts
  std::string tokenizer;               // tokenizer.model, tokenizer.json or none
  std::vector<std::string> stock;      // what stock transformers computes as we do, in words
  std::vector<std::string> needs_moe;  // what only moe computes; empty: nothing
  StoredVerdict function;  // mixtures: what was measured of these weights against the dense parent
};

// UserError as io::Checkpoint, parse_config and check_tensors throw it.
Inspection inspect(const std::filesystem::path& folder);

OrderedJson to_json(const Inspection& inspection);

// Layers for people: {0, 1, 2, 5} is "0-2, 5", {} is "none".
std::string layer_ranges(const std::vector<int64_t>& layers);

}  // namespace moe::model
