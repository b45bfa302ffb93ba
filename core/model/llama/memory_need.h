#pragma once
// What inference takes of the host's memory, from shapes alone: the weights that loading copies,
// and what a forward holds beside them. Training has core/train/loop/plan.h.

#include <c10/core/Device.h>

#include <cstdint>

#include "core/model/config/config.h"
#include "core/model/llama/llama.h"
#include "core/route/router_settings.h"

namespace moe::model {

// Bytes of host memory that Llama::load() fills with copies of the folder's tensors, in f32: all of
// them, or where matrices stay mapped (Storage::kStored) those that are none. 0 on a GPU, whose
// memory is not the host's.
uint64_t bytes_to_copy(const ModelConfig& config, Storage storage, c10::Device device);

// Bytes that a token takes while it goes through one layer, f32, if nothing of it were given back
// before the end: the residual stream, queries, keys and values with what attention makes of them,
// and the feed-forward's rows. Batches are chosen by it (core/eval/scoring/batches.h).
int64_t layer_bytes_per_token(const ModelConfig& config, const route::RouterSettings& router);

// Bytes of a forward of `tokens` tokens, 0 on a GPU: what one layer holds at most, a tenth more for
// all that is small, what the allocator keeps, and with `cached_tokens` the keys and values of so
// many in every layer, f32.
uint64_t forward_bytes(const ModelConfig& config, const route::RouterSettings& router,
                       int64_t tokens, int64_t cached_tokens, c10::Device device);

// Bytes of the keys and values of so many tokens in every layer, f32.
uint64_t kept_bytes(const ModelConfig& config, int64_t tokens);

}  // namespace moe::model
