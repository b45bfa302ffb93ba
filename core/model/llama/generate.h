#pragma once
// Text generation with a key/value cache: greedy, or sampling from the top-p nucleus.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/model/llama/llama.h"

namespace moe::model {

struct GenerateSettings {
  int64_t max_tokens = 256;
  double temperature = 0;  // 0: greedy
  double top_p = 1.0;      // samples from the smallest set of tokens with this probability
  int64_t seed = 1;
  std::vector<int64_t> eos_ids = {};  // generation ends after any of these ids
  // Called after each new token with all new ids; returns true to end the generation.
  std::function<bool(const std::vector<int64_t>&)> stops = {};
};

// Returns `stored` with its route::generation_router(): the output of a token does not depend on
// its batch. Throws UserError if the router is for training only.
RoutingOptions generation_routing(const RoutingOptions& stored);

// Returns the bytes of host memory that generation needs; 0 for a GPU.
uint64_t generate_bytes(const ModelConfig& config, const RoutingOptions& routing,
                        int64_t prompt_tokens, const GenerateSettings& settings, at::Device device);

// Returns the new token ids after `prompt`, including EOS. Prompt and new ids are at most
// max_position_embeddings. Calls on_token for each new id. `prompt` must not be empty.
std::vector<int64_t> generate(const Llama& model, const RoutingOptions& routing,
                              const std::vector<int64_t>& prompt, const GenerateSettings& settings,
                              const std::function<void(int64_t)>& on_token = {});

using OnGenerated = std::function<void(size_t index, const std::vector<int64_t>& ids)>;
// Prompts for generate_all().
struct GenerateBatch {
  const std::vector<std::vector<int64_t>>& prompts;
  const std::vector<size_t>& indices;  // of the prompts to continue
  int64_t rows = 1;  // number of prompts in a batch on a CPU; a GPU computes one at a time
  OnGenerated done;  // called once per prompt of `indices` with all its new ids, in any order
};

// Generates for each prompt of `indices`. Results do not depend on `indices` and `rows`
// (kernels/cpu/skinny_gemm.h). On a CPU the common prefix of all prompts is computed once.
void generate_all(const Llama& model, const RoutingOptions& routing,
                  const GenerateSettings& settings, const GenerateBatch& batch);

// Returns the number of rows whose caches fit into `available_bytes`, 1 to kernels::kMaxSkinnyRows.
int64_t rows_at_once(const ModelConfig& config, int64_t prompt_tokens, int64_t answer_tokens,
                     uint64_t available_bytes);

// Returns the token id sampled from logits [V] f32 by `uniform` in [0, 1); with temperature 0 the
// id of the largest logit. Ties go to the lower id.
int64_t pick_token(const at::Tensor& logits, double temperature, double top_p, double uniform);

}  // namespace moe::model
