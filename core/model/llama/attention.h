#pragma once
// Grouped-query causal self-attention over packed sequences, with rotary position embedding (RoPE),
// prefixes shared between sequences, and key/value caches. No path pads sequences.
//
// The CPU uses the project's own kernels (kernels/ops/causal_attention.h). A GPU in bf16 uses one
// variable-length call of LibTorch's flash attention (Dao 2023, "FlashAttention-2") for the whole
// pack, with RoPE in the same autograd node. In f32 on a GPU, and for combinations without a
// kernel, adjacent sequences of equal length are one batch of scaled_dot_product_attention.
//
// T tokens, D model width, B sequences, H query heads, G key/value heads, A head width, P
// positions.

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "core/model/config/config.h"
#include "core/model/llama/kv_cache.h"
#include "core/model/moe/adapter.h"
#include "kernels/ops/causal_attention.h"
#include "kernels/ops/linear.h"

namespace moe::model {

// Returns the RoPE frequencies [A / 2] f32, with the scalings default, linear, dynamic and llama3
// of transformers. Only dynamic NTK depends on `sequence_length`: its base grows if sequence_length
// exceeds max_position_embeddings.
at::Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim,
                            int64_t max_position_embeddings, int64_t sequence_length);

// Cosine and sine of positions, each [P, A] f32; both halves of a row are equal (rotate_half order
// of Hugging Face).
using RopeTable = kernels::Rotation;
// Return the table of positions first .. first + count - 1, or of `positions`.
RopeTable rope_table(const at::Tensor& frequencies, int64_t first, int64_t count);
RopeTable rope_table(const at::Tensor& frequencies, const std::vector<int64_t>& positions);
// Returns the table [T, A] of all tokens: those of sequence i have positions starts[i] ..
// starts[i] + lengths[i] - 1.
RopeTable rotations_at(const std::vector<int64_t>& lengths, const std::vector<int64_t>& starts,
                       const ModelConfig& config);

// Returns x [B, heads, S, A] rotated by the S positions of the table.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

// Inputs of packed_attention() that are equal in all layers. Built once per forward, so that layers
// copy nothing to the GPU.
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

// Returns true if flash attention supports `type` and the heads: bf16, head width a multiple of 8
// up to 256.
bool fits_flash(at::ScalarType type, const ModelConfig& config);

// Returns the tables of a pack. Returns nullopt for an empty pack, and if the sequences need
// different RoPE tables (dynamic NTK beyond max_position_embeddings). prefix_index as in Sequences.
std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& prefix_index,
                                      const ModelConfig& config, at::Device device);

// Returns the attention of a pack on a GPU, [T, H A] in the dtype of qkv. qkv [T, (H + 2 G) A] f32
// or bf16; its queries and keys may be rotated in place. Differentiable in qkv. Shared prefixes
// require fits_flash() and no gradient.
at::Tensor packed_attention(at::Tensor&& qkv, const std::vector<int64_t>& lengths,
                            const PackTables& tables, const ModelConfig& config);

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

// Returns queries, keys and values [T, (H + 2 G) A] of x [T, D], with biases and norms, before
// RoPE.
at::Tensor project_qkv(const at::Tensor& x, const AttentionWeights& weights,
                       const ModelConfig& config);

// Returns the outputs of all heads [T, H A], before the output projection. x [T, D] is the normed
// input. Positions start at 0, or after the prefix.
at::Tensor self_attention(const at::Tensor& x, const AttentionWeights& weights,
                          const ModelConfig& config, const Sequences& sequences);

// As self_attention() for sequences with one cache each. x [T, D] has the next lengths[i] tokens of
// each sequence i. Their keys and values are appended to layer `index` of caches[i]. `rotations`
// [T, A] is rotations_at() of the tokens (CPU only).
at::Tensor attend_with_kv_cache(const at::Tensor& x, const AttentionWeights& weights,
                                const ModelConfig& config, const std::vector<int64_t>& lengths,
                                const std::vector<KvCache*>& caches, int64_t index,
                                const RopeTable& rotations);

}  // namespace moe::model
