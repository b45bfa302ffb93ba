#include "core/model/llama/memory_need.h"

#include <algorithm>

#include "core/model/config/weights.h"
#include "core/route/router.h"
#include "kernels/ops/grouped_swiglu.h"

namespace moe::model {

namespace {

constexpr int64_t kF32 = sizeof(float);
// What the C library's allocator keeps of blocks of some megabytes that were given back.
constexpr uint64_t kKeptByAllocator_bytes = uint64_t{16} << 20;

// What a token holds in a shared expert, beside what the routed ones gave: gate, up, their product,
// the output and its share of it.
int64_t shared_expert(const ModelConfig& config) {
  return config.moe && config.moe->shared_expert_width > 0
             ? 3 * config.moe->shared_expert_width + 3 * config.hidden_size
             : 0;
}

}  // namespace

uint64_t bytes_to_copy(const ModelConfig& config, Storage storage, c10::Device device) {
  if (!device.is_cpu()) {
    return 0;
  }
  int64_t elements = 0;
  for (const auto& tensor : expected_tensors(config)) {
    const bool is_matrix =
        tensor.shape.size() >= 2 && !is_router(tensor.name) && !is_shared_expert_gate(tensor.name);
    elements += storage == Storage::kStored && is_matrix ? 0 : tensor.elements();
  }
  return static_cast<uint64_t>(kF32 * elements);
}

int64_t layer_bytes_per_token(const ModelConfig& config, const route::RouterSettings& router) {
  const int64_t width = config.hidden_size;
  const int64_t heads = (config.heads + 2 * config.kv_heads) * config.head_dim;
  const int64_t dense = 3 * config.intermediate_size + width;  // gate, up, their product; the sum
  const int64_t expert = config.moe ? router.family->usual_experts(router, config.moe->experts) *
                                          (3 * config.moe->expert_width + 2 * width)
                                    : 0;
  return kF32 * (4 * width + 2 * heads + std::max({dense, expert, shared_expert(config)}));
}

namespace {

// What a token holds where it holds most: besides the residual stream and its norm, either queries,
// keys and values and what attention makes of them, or what lies between the norm and the output of
// a feed-forward. Of a mixture that is the rows before and behind each expert too, and a sum that
// comes next; they are of other sizes than what attention gave back, so that the allocator has
// both.
int64_t most_per_token(const ModelConfig& config, const route::RouterSettings& router) {
  const int64_t width = config.hidden_size;
  const int64_t attention = 2 * (config.heads + config.kv_heads) * config.head_dim;
  const int64_t dense = kernels::numbers_between(width, config.intermediate_size);
  if (!config.moe) {
    return 2 * width + std::max(attention, dense);
  }
  const int64_t rows =
      router.family->usual_experts(router, config.moe->experts) + static_cast<int64_t>(router.ir);
  const int64_t expert = kernels::numbers_between(width, config.moe->expert_width) + 2 * width;
  return 3 * width + attention + std::max({dense, rows * expert, shared_expert(config)});
}

}  // namespace

uint64_t forward_bytes(const ModelConfig& config, const route::RouterSettings& router,
                       int64_t tokens, int64_t cached_tokens, c10::Device device) {
  if (!device.is_cpu()) {
    return 0;
  }
  const int64_t in_a_layer = kF32 * most_per_token(config, router);
  const uint64_t kept = tokens > 0 ? kKeptByAllocator_bytes : 0;
  return static_cast<uint64_t>(tokens) * static_cast<uint64_t>(in_a_layer) / 10 * 11 + kept +
         kept_bytes(config, cached_tokens);
}

uint64_t kept_bytes(const ModelConfig& config, int64_t tokens) {
  const int64_t of_token = 2 * kF32 * config.layers * config.kv_heads * config.head_dim;
  return static_cast<uint64_t>(tokens) * static_cast<uint64_t>(of_token);
}

}  // namespace moe::model
