#pragma once
// Grouped-query causal self-attention over packed sequences, through scaled_dot_product_attention.
// T tokens, D model width, H heads, G key/value heads, A head width.

#include <ATen/ATen.h>

#include <vector>

#include "core/model/config/config.h"
#include "core/model/llama/adapter.h"
#include "core/model/llama/gpu_attention.h"
#include "core/model/llama/kv_cache.h"
#include "core/model/llama/rope.h"
#include "kernels/ops/weight.h"

namespace moe::model {

struct AttentionWeights {
  kernels::Weight qkv;     // [(H + 2 G) A, D]: query rows, key rows, value rows
  kernels::Weight output;  // [D, H A]
  at::Tensor bias;         // [(H + 2 G) A], of the rows of qkv; undefined where there is none
  Adapter qkv_adapter = {}, output_adapter = {};
  at::Tensor query_norm = {}, key_norm = {};  // [A], of every head; undefined where there are none
};

// Sequence i is the next lengths[i] tokens; it continues the earlier sequence continues[i], or none
// (-1, or `continues` empty). A sequence that others continue continues none itself.
struct Sequences {
  const std::vector<int64_t>& lengths;
  const std::vector<int64_t>& continues;
  const PackTables* tables = nullptr;  // on a GPU, if its kernels take the pack
  int64_t prefix_of(size_t index) const { return continues.empty() ? -1 : continues[index]; }
};

// Every query head's own key/value head: [B, G, S, A] -> [B, H, S, A]. LibTorch's fused kernels
// want equal heads.
at::Tensor spread_heads(const at::Tensor& x, int64_t heads);

// Queries, keys and values of x [T, D] as rows [T, (H + 2 G) A]: with biases, and with queries and
// keys normed where the model does so, but not rotated.
at::Tensor project_qkv(const at::Tensor& x, const AttentionWeights& weights,
                       const ModelConfig& config);

// x [T, D], the normed input; positions start at 0. Returns what every head gives, [T, H A], before
// the product with the output matrix.
at::Tensor attended_tokens(const at::Tensor& x, const AttentionWeights& weights,
                           const ModelConfig& config, const Sequences& sequences);

// Overload for sequences with a cache each: x [T, D] are their next lengths[i] tokens, whose keys
// and values layer `index` of the caches stores. `rotations` [T, A] are those of their positions,
// on a CPU.
at::Tensor attended_tokens(const at::Tensor& x, const AttentionWeights& weights,
                           const ModelConfig& config, const std::vector<int64_t>& lengths,
                           const std::vector<KvCache*>& caches, int64_t index,
                           const RopeTable& rotations);

// Of sequence i the positions from starts[i] on, lengths[i] of them, one after the other: [T, A].
RopeTable rotations_at(const std::vector<int64_t>& lengths, const std::vector<int64_t>& starts,
                       const ModelConfig& config);

}  // namespace moe::model
