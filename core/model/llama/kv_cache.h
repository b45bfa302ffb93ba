#pragma once
// Key/value cache of one sequence, on a CPU or a GPU. A batch of sequences of any lengths has one
// cache each; on a CPU, sequences with a common prefix share the cache of the prefix.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/config/config.h"
#include "kernels/ops/cached_attention.h"

namespace moe::model {

// Keys and values of one sequence in one layer on a GPU, [1, G, S, A] in the dtype of the attention
// product; undefined before the first token. Keys are rotated.
struct LayerCache {
  at::Tensor keys, values;
};

class KvCache;

struct KvCacheOptions {
  at::Device device = at::kCPU;
  // CPU only. Initial number of tokens, in addition to those of `prefix`; grows when needed.
  int64_t capacity = 16;
  // CPU only. Has no prefix itself, and does not grow any more.
  std::shared_ptr<const KvCache> prefix = nullptr;
  at::Tensor memory = {};  // CPU only. KvCache::numel() of f32, or undefined: allocated
};

class KvCache {
 public:
  explicit KvCache(const ModelConfig& config, const KvCacheOptions& options = {});
  // Returns the number of f32 that `capacity` tokens take on a CPU.
  static int64_t numel(const ModelConfig& config, int64_t capacity);

  // Returns the number of tokens including the prefix, which is the position of the next token.
  int64_t length() const;
  // Reserves memory for `tokens` more tokens; if it reallocates, at least twice the capacity.
  void reserve(int64_t tokens);
  // Returns what attention reads and extends in one layer, on a CPU and on a GPU.
  kernels::KeptSequence cpu_layer(int64_t index) const;
  LayerCache& gpu_layer(int64_t index) { return gpu_.at(static_cast<size_t>(index)); }
  // Counts `tokens` more, after every layer has stored theirs.
  void add(int64_t tokens) { own_length_ += tokens; }

 private:
  kernels::AttentionHeads heads_;
  std::vector<kernels::KeptKeys> cpu_;  // of each layer; empty on a GPU
  std::vector<LayerCache> gpu_;         // of each layer; empty on a CPU
  int64_t capacity_;
  int64_t own_length_ = 0;
  std::shared_ptr<const KvCache> prefix_;
};

}  // namespace moe::model
