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

using OnGenerated = std::function<void(size_t index, const std::vector<int64_t>& ids)>;
struct GenerateBatch {
  const std::vector<std::vector<int64_t>>& prompts;
  const std::vector<size_t>& wanted;  // indices of the prompts to continue
  int64_t rows = 1;  // prompts computed at once on a CPU; a GPU computes one after the other
  OnGenerated done;  // called with an index and its new ids when they are complete, in any order
};

// Generates for each of the wanted prompts. The ids of a prompt do not depend on the prompts that
// are computed at the same time: the common prefix is that of all prompts, and every row of
// skinny_gemm() (kernels/cpu/skinny_gemm.h) has the same bits in any batch.
void generate_all(const Llama& model, const RoutingOptions& routing,
                  const GenerateSettings& settings, const GenerateBatch& batch);

// As many rows at once as `available` bytes have room for, at least one and at most the rows of a
// skinny product.
int64_t rows_at_once(const ModelConfig& config, int64_t prompt_tokens, int64_t answer_tokens,
                     uint64_t available_bytes);

// The sampling rule alone: logits [V] f32 and a uniform number in [0, 1) -> token id. Ties go to
// the lower id.
int64_t pick_token(const at::Tensor& logits, double temperature, double top_p, double uniform);

}  // namespace moe::model
