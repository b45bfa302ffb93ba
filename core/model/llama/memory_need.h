#pragma once
// Estimates of the host memory of inference, from shapes alone. bytes_to_copy() and forward_bytes()
// return 0 for a GPU. core/train/loop/plan.h estimates the memory of training.

#include <c10/core/Device.h>

#include <cstdint>

#include "core/model/config/config.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"

namespace moe::model {

// Returns the bytes that Llama::load() copies in f32: with kStored, all tensors but matrices.
uint64_t bytes_to_copy(const ModelConfig& config, Storage storage, c10::Device device);

// Returns the bytes in f32 of all intermediate values of a token in one layer. Determines the size
// of batches (core/eval/scoring/requests.h).
int64_t layer_bytes_per_token(const ModelConfig& config, const route::RouterSettings& router);

// Returns the bytes of a forward of `tokens` tokens: the peak of one layer plus 10 % for small
// buffers, memory kept by the allocator, and kv_cache_bytes() of `cached_tokens`.
uint64_t forward_bytes(const ModelConfig& config, const route::RouterSettings& router,
                       int64_t tokens, int64_t cached_tokens, c10::Device device);

// Returns the bytes of the keys and values of `tokens` tokens in all layers, f32.
uint64_t kv_cache_bytes(const ModelConfig& config, int64_t tokens);

}  // namespace moe::model
