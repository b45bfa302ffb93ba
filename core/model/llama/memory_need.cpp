#include "core/model/llama/memory_need.h"

#include <algorithm>

#include "core/model/config/weights.h"
#include "core/route/router.h"

namespace moe::model {

namespace {

constexpr int64_t kF32 = sizeof(float);

}  // namespace

uint64_t bytes_to_copy(const ModelConfig& config, Storage storage, c10::Device device) {
  if (!device.is_cpu()) {
    return 0;
  }
  int64_t elements = 0;
  for (const auto& tensor : expected_tensors(config)) {
    const bool is_matrix = tensor.shape.size() >= 2 && !is_router(tensor.name);
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
  return kF32 * (4 * width + 2 * heads + std::max(dense, expert));
}

uint64_t forward_bytes(const ModelConfig& config, const route::RouterSettings& router,
                       int64_t tokens, int64_t cached_tokens, c10::Device device) {
  if (!device.is_cpu()) {
    return 0;
  }
  const int64_t cached = 2 * kF32 * config.layers * config.kv_heads * config.head_dim;
  return static_cast<uint64_t>(tokens) *
             static_cast<uint64_t>(layer_bytes_per_token(config, router)) +
         static_cast<uint64_t>(cached_tokens) * static_cast<uint64_t>(cached);
}

}  // namespace moe::model
