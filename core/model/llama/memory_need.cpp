#include "core/model/llama/memory_need.h"

#include <algorithm>

#include "core/model/config/weights.h"
#include "kernels/ops/device.h"
#include "kernels/ops/grouped_swiglu.h"

namespace moe::model {
namespace {

constexpr int64_t kF32 = sizeof(float);
// Freed blocks of some megabytes that the C library's allocator keeps.
constexpr uint64_t kAllocatorBytes = uint64_t{16} << 20;

// Returns the values of a token in a shared expert: gate, up, their product, the output, the output
// times its gate, and the output of the routed experts.
int64_t shared_expert_numel(const ModelConfig& config) {
  return config.moe && config.moe->shared_expert_width > 0
             ? 3 * config.moe->shared_expert_width + 3 * config.hidden_size
             : 0;
}

// Returns the peak number of values of a token: residual stream, norm, and inputs and outputs of
// attention or intermediate values of the feed-forward. The rows of experts differ in size from the
// buffers of attention, which the allocator therefore cannot reuse: both count.
int64_t peak_per_token(const ModelConfig& config, const route::RouterSettings& router) {
  const int64_t width = config.hidden_size;
  const int64_t attention = 2 * (config.heads + config.kv_heads) * config.head_dim;
  const int64_t dense = kernels::ffn_activation_numel(width, config.intermediate_size);
  if (!config.moe) {
    return 2 * width + std::max(attention, dense);
  }
  const int64_t rows = router.family->typical_active_experts(router, config.moe->experts) +
                       static_cast<int64_t>(router.ir);
  const int64_t expert = kernels::ffn_activation_numel(width, config.moe->expert_width) + 2 * width;
  return 3 * width + attention + std::max({dense, rows * expert, shared_expert_numel(config)});
}

}  // namespace

uint64_t bytes_to_copy(const ModelConfig& config, Storage storage, c10::Device device) {
  if (!kernels::device_traits(device).has_host_memory) {
    return 0;
  }
  int64_t elements = 0;
  for (const auto& tensor : expected_tensors(config)) {
    const bool is_matrix =
        tensor.shape.size() >= 2 && !is_router(tensor.name) && !is_shared_expert_gate(tensor.name);
    elements += storage == Storage::kStored && is_matrix ? 0 : tensor.elements();
  }
  return kF32 * elements;
}

int64_t layer_bytes_per_token(const ModelConfig& config, const route::RouterSettings& router) {
  const int64_t width = config.hidden_size;
  const int64_t heads = (config.heads + 2 * config.kv_heads) * config.head_dim;
  const int64_t dense = 3 * config.intermediate_size + width;  // gate, up, their product; the sum
  const int64_t expert = config.moe
                             ? router.family->typical_active_experts(router, config.moe->experts) *
                                   (3 * config.moe->expert_width + 2 * width)
                             : 0;
  return kF32 * (4 * width + 2 * heads + std::max({dense, expert, shared_expert_numel(config)}));
}

uint64_t forward_bytes(const ModelConfig& config, const route::RouterSettings& router,
                       int64_t tokens, int64_t cached_tokens, c10::Device device) {
  if (!kernels::device_traits(device).has_host_memory) {
    return 0;
  }
  const int64_t layer_bytes = kF32 * peak_per_token(config, router);
  const uint64_t allocator_bytes = tokens > 0 ? kAllocatorBytes : 0;
  return tokens * layer_bytes / 10 * 11 + allocator_bytes + kv_cache_bytes(config, cached_tokens);
}

uint64_t kv_cache_bytes(const ModelConfig& config, int64_t tokens) {
  return tokens * 2 * kF32 * config.layers * config.kv_heads * config.head_dim;
}

}  // namespace moe::model
