#pragma once
// The attention of a pack on a GPU: one call for all of its documents, whatever their lengths. In
// bf16 that is the flash kernel, which is told where documents end (Dao 2023, "FlashAttention-2"),
// with RoPE in the same autograd node; in f32, which it does not take, documents of equal length
// are a batch each. T tokens, B sequences, H query heads, G key/value heads, A head width, P
// positions.

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "core/model/config/config.h"

namespace moe::model {

// What every layer reads of a pack: made once a forward, so that layers copy nothing to the GPU.
struct PackTables {
  at::Tensor ends;          // [B + 1] i32: sequence i is tokens ends[i] to ends[i + 1] - 1
  at::Tensor position;      // [T] i32, of each token within its sequence and what that continues
  at::Tensor cosine, sine;  // [P, A / 2] f32, P = longest_keys
  int64_t longest = 0;      // tokens of a sequence
  // The keys and values that sequence i attends to, if some continue others: those of tokens
  // key_rows[key_ends[i]] to key_rows[key_ends[i + 1] - 1].
  at::Tensor key_rows = {};  // [R] i64; undefined if each attends to its own
  at::Tensor key_ends = {};  // [B + 1] i32
  int64_t longest_keys = 0;  // positions of a sequence with what it continues
};

// Returns true if the flash kernel takes `type` and heads of this width: bf16, a multiple of 8 up
// to 256.
bool fits_flash(at::ScalarType type, const ModelConfig& config);

// `continues` as in Sequences (attention.h). Returns nullopt if no one table of rotations serves
// all sequences: dynamic NTK rotates those longer than the model's window by other angles.
std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& continues,
                                      const ModelConfig& config, at::Device device);

// qkv [T, (H + 2 G) A] f32 or bf16 -> [T, H A] in its type: causal within each of `lengths`.
// Differentiable in qkv, which is given away: its queries and keys are rotated where they lie.
// Tables with key_rows: for inference in bf16 (fits_flash()); a sequence also sees all of the one
// that it continues.
at::Tensor packed_attention(at::Tensor&& qkv, const std::vector<int64_t>& lengths,
                            const PackTables& tables, const ModelConfig& config);

}  // namespace moe::model
