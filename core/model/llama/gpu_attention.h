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
  at::Tensor position;      // [T] i32, of each token within its sequence
  at::Tensor cosine, sine;  // [P, A / 2] f32, P = longest
  int64_t longest = 0;
};

// nullopt where no one table of rotations serves all sequences: dynamic NTK turns those that are
// longer than the model was made for by angles of their own.
std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const ModelConfig& config, at::Device device);

// qkv [T, (H + 2 G) A] f32 or bf16 -> [T, H A] in its type: causal within each of `lengths`.
// Differentiable in qkv, which is given away: its queries and keys are rotated where they lie.
at::Tensor packed_attention(at::Tensor&& qkv, const std::vector<int64_t>& lengths,
                            const PackTables& tables, const ModelConfig& config);

}  // namespace moe::model
