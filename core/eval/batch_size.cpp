#include "core/eval/batch_size.h"

#include <algorithm>

namespace moe::eval {

namespace {

constexpr int64_t kMost = 4096, kLeast = 512;
constexpr int64_t kLayerBytes = int64_t{1} << 30;

// Experts that a token goes to: k, or what top-p and ReLU take on average, about 2.
int64_t rows_per_token(const route::RouterSettings& router) {
  return router.family == route::Family::kTopK ? std::max<int64_t>(1, router.k) : 2;
}

}  // namespace

int64_t layer_bytes_per_token(const model::ModelConfig& config,
                              const route::RouterSettings& router) {
  const int64_t width = config.hidden_size;
  const int64_t heads = (config.heads + 2 * config.kv_heads) * config.head_dim;
  const int64_t dense = 3 * config.intermediate_size + width;  // gate, up, their product; the sum
  const int64_t expert =
      config.moe ? rows_per_token(router) * (3 * config.moe->expert_width + 2 * width) : 0;
  return static_cast<int64_t>(sizeof(float)) * (4 * width + 2 * heads + std::max(dense, expert));
}

int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router) {
  const int64_t per_token = layer_bytes_per_token(config, router);
  int64_t tokens = kMost;
  while (tokens > kLeast && tokens > kLayerBytes / per_token) {
    tokens /= 2;
  }
  return tokens;
}

}  // namespace moe::eval
