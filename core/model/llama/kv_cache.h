#pragma once
// Key/value cache of one sequence, on a CPU or a GPU. Each sequence of a batch has its own. On a
// CPU, sequences can share the cache of a common prefix.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/config/config.h"
#include "kernels/ops/causal_attention.h"

namespace moe::model {

// Keys (rotated) and values of one sequence in one layer on a GPU, [1, G, S, A] in the dtype of the
// attention product. Undefined before the first token.
struct LayerCache {
  at::Tensor keys, values;
};

inline kernels::AttentionHeads attention_heads(const ModelConfig& config) {
  return {config.heads, config.kv_heads, config.head_dim};
}

class KvCache;

struct KvCacheOptions {
  at::Device device = at::kCPU;
  // CPU only. Initial capacity in tokens, without the prefix. Grows if needed.
  int64_t capacity = 16;
  // CPU only. Must have no prefix itself and must not grow any more.
  std::shared_ptr<const KvCache> prefix = nullptr;
  at::Tensor memory = {};  // CPU only. KvCache::numel() f32; undefined: allocated
};

class KvCache {
 public:
  explicit KvCache(const ModelConfig& config, const KvCacheOptions& options = {});
  // Returns the number of f32 values of `capacity` tokens on a CPU.
  static int64_t numel(const ModelConfig& config, int64_t capacity);

  // Returns the number of tokens including the prefix, which is the position of the next token.
  int64_t length() const;
  // Reserves memory for `tokens` more tokens. A reallocation at least doubles the capacity.
  void reserve(int64_t tokens);
  // Return the keys and values of one layer, which attention reads and extends.
  kernels::KvCacheView cpu_layer(int64_t index) const;
  LayerCache& gpu_layer(int64_t index) { return gpu_.at(static_cast<size_t>(index)); }
  // Adds `tokens` to the length, after all layers have stored them.
  void add(int64_t tokens) { own_length_ += tokens; }

 private:
  kernels::AttentionHeads heads_;
  std::vector<kernels::KvBlock> cpu_;  // one per layer; empty on a GPU
  std::vector<LayerCache> gpu_;        // one per layer; empty on a CPU
  int64_t capacity_;
  int64_t own_length_ = 0;
  std::shared_ptr<const KvCache> prefix_;
};

}  // namespace moe::model
