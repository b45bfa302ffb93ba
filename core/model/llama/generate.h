#pragma once
// Text from a model, token by token with a KV cache: greedy, or sampled from the top-p nucleus.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/model/llama/llama.h"

namespace moe::model {

struct GenerateSettings {
  int64_t max_tokens = 256;
  double temperature = 0;  // 0 = greedy
  double top_p = 1.0;      // keep the smallest set of tokens whose probability reaches it
  uint64_t seed = 1;
  std::vector<int64_t> eos_ids = {};                            // stop after any of them
  std::function<bool(const std::vector<int64_t>&)> stops = {};  // asked after each new token
};

// The folder's router as generation wants it: dropless and without FR (generation_router), so that
// a token's output does not depend on what it is batched with. Routers other than top-k stay as
// they are.
RoutingOptions generation_routing(const RoutingOptions& stored);

// Bytes of host memory of a folder that is loaded to generate after `prompt_tokens` tokens: its
// weights, the forward of the prompt, the keys and values of all.
uint64_t generate_bytes(const ModelConfig& config, const RoutingOptions& routing,
                        int64_t prompt_tokens, const GenerateSettings& settings, at::Device device);

// The new ids after `prompt` (not empty), eos included; stops at max_position_embeddings. on_token
// sees each as it comes.
std::vector<int64_t> generate(const Llama& model, const RoutingOptions& routing,
                              const std::vector<int64_t>& prompt, const GenerateSettings& settings,
                              const std::function<void(int64_t)>& on_token = {});

// The sampling rule alone: logits [V] f32 and a uniform number in [0, 1) -> token id. Ties go to
// the lower id.
int64_t pick_token(const at::Tensor& logits, double temperature, double top_p, double uniform);

}  // namespace moe::model
