#pragma once
// Rotary position embedding, Hugging Face's rotate_half order, with the scalings transformers knows
// by the names default, linear, dynamic and llama3.

#include <ATen/ATen.h>

#include <vector>

#include "core/model/config/config.h"

namespace moe::model {

// The frequencies [A / 2] f32 for a sequence that reaches `sequence_length` positions (only dynamic
// NTK depends on it: its base grows once the sequence is longer than max_position_embeddings).
at::Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim,
                            int64_t max_position_embeddings, int64_t sequence_length);

// cos and sin of positions first .. first + count - 1, each [count, A] f32 (both halves alike).
struct RopeTable {
  at::Tensor cosine, sine;
};
RopeTable rope_table(const at::Tensor& frequencies, int64_t first, int64_t count);
// The same of any positions.
RopeTable rope_table(const at::Tensor& frequencies, const std::vector<int64_t>& positions);

// x [B, heads, S, A] rotated by the table's S positions.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace moe::model
