#pragma once
// Grouped-query causal self-attention over packed sequences without padding, with rotary position
// embedding (RoPE), prefixes shared between sequences, and key/value caches. The CPU uses
// kernels/ops/causal_attention.h, a GPU in bf16 one variable-length call of LibTorch's flash
// attention (Dao 2023). Otherwise equal lengths are a batch of scaled_dot_product_attention.
//
// T tokens, D model width, B sequences, H, G query and key/value heads, A head width, P positions.

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/model/config/config.h"
#include "core/model/moe/adapter.h"
#include "kernels/ops/causal_attention.h"
#include "kernels/ops/linear.h"

namespace moe::model {

// Returns the RoPE frequencies [A / 2] f32, with the scalings of transformers. Only dynamic NTK
// depends on `sequence_length`, beyond max_position_embeddings.
at::Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim,
                            int64_t max_position_embeddings, int64_t sequence_length);

// Cosine and sine of positions, each [P, A] f32 with two equal halves (rotate_half order).
using RopeTable = kernels::Rotation;
// Returns the table [T, A] of all tokens. The positions of sequence i begin at starts[i].
RopeTable rotations_at(const std::vector<int64_t>& lengths, const std::vector<int64_t>& starts,
                       const ModelConfig& config);

// Inputs of packed_attention() that are equal in all layers: layers copy nothing to the GPU.
struct PackTables {
  at::Tensor ends;          // [B + 1] i32: sequence i is tokens ends[i] to ends[i + 1] - 1
  at::Tensor position;      // [T] i32, position of each token, after its prefix
  at::Tensor cosine, sine;  // [P, A / 2] f32, P = max_keys
  int64_t max_length = 0;   // maximum number of tokens of a sequence
  // With shared prefixes: sequence i attends to the keys and values of tokens key_rows[key_ends[i]]
  // to key_rows[key_ends[i + 1] - 1]. Else undefined: sequence i attends to its own tokens.
  at::Tensor key_rows = {};  // [R] i64
  at::Tensor key_ends = {};  // [B + 1] i32
  int64_t max_keys = 0;      // maximum number of positions of a sequence, including its prefix
};

// Returns true if flash attention supports `type` and the heads.
bool fits_flash(at::ScalarType type, const ModelConfig& config);

// Returns the tables of a pack; nullopt for an empty pack, and if the sequences need different RoPE
// tables (dynamic NTK beyond max_position_embeddings). prefix_index as in Sequences.
std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& prefix_index,
                                      const ModelConfig& config, at::Device device);

// Keys (rotated) and values of one sequence in one layer on a GPU, [1, G, S, A] in the dtype of the
// attention product. Undefined before the first token.
struct LayerCache {
  at::Tensor keys, values;
};

inline kernels::AttentionHeads attention_heads(const ModelConfig& config) {
  return {config.heads, config.kv_heads, config.head_dim};
}

class KvCache;

// Options of a KvCache. All except `device` apply to a CPU only.
struct KvCacheOptions {
  at::Device device = at::kCPU;
  int64_t capacity = 16;                            // initial, in tokens without the prefix
  std::shared_ptr<const KvCache> prefix = nullptr;  // must have no prefix and must not grow
  at::Tensor memory = {};                           // KvCache::numel() f32; undefined: allocated
};

// Key/value cache of one sequence. On a CPU, sequences can share the cache of a common prefix.
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
  LayerCache& gpu_layer(int64_t index) { return gpu_.at(index); }
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

struct AttentionWeights {
  kernels::Weight qkv;     // [(H + 2 G) A, D]: query rows, key rows, value rows
  kernels::Weight output;  // [D, H A]
  at::Tensor bias;         // [(H + 2 G) A], bias of qkv; undefined: none
  Adapter qkv_adapter = {}, output_adapter = {};
  at::Tensor query_norm = {}, key_norm = {};  // [A], RMSNorm of each head; undefined: none
};

// Sequences of a pack. Sequence i is the next lengths[i] tokens. It continues the earlier sequence
// prefix_index[i], or none (-1, or prefix_index empty). A prefix has no prefix itself.
struct Sequences {
  const std::vector<int64_t>& lengths;
  const std::vector<int64_t>& prefix_index;
  const PackTables* tables = nullptr;  // set if packed_attention() is used for the pack
  int64_t prefix(size_t index) const { return prefix_index.empty() ? -1 : prefix_index[index]; }
};

// Returns queries, keys and values [T, (H + 2 G) A] of x [T, D], before RoPE.
at::Tensor project_qkv(const at::Tensor& x, const AttentionWeights& weights,
                       const ModelConfig& config);

// Returns the outputs of all heads [T, H A] for the normed input x [T, D].
at::Tensor self_attention(const at::Tensor& x, const AttentionWeights& weights,
                          const ModelConfig& config, const Sequences& sequences);

// Returns self_attention() of the next lengths[i] tokens of each sequence i after those of
// caches[i]. Appends their keys and values to layer `index` of caches[i]. `rotations` [T, A]:
// rotations_at() (CPU only).
at::Tensor attend_with_kv_cache(const at::Tensor& x, const AttentionWeights& weights,
                                const ModelConfig& config, const std::vector<int64_t>& lengths,
                                const std::vector<KvCache*>& caches, int64_t index,
                                const RopeTable& rotations);

}  // namespace moe::model
