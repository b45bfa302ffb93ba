#pragma once
// Causal self-attention of new tokens behind keys and values that are kept, on the CPU: what
// generation asks for, where every sequence of a batch has its own length and gets a token at a
// time. Sequences may have a prefix in common, which is kept once and read by all.
//
// A step reads every key and value once and makes two multiplications with each, so it is bound by
// memory: both lie so that this happens in order.
//
// T tokens, H query heads, G key/value heads, A head width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/causal_attention.h"

namespace moe::kernels {

inline constexpr int64_t kKeyBlock = 16;  // positions

// Keys and values of one sequence in one layer, f32; keys are rotated.
struct KeptKeys {
  at::Tensor keys;    // [G, capacity / kKeyBlock, A, kKeyBlock]: of a position p those at
                      // [g, p / kKeyBlock, :, p % kKeyBlock]
  at::Tensor values;  // [G, capacity, A]
};

// Memory for them, for `capacity` positions or some more; what it holds is not defined.
KeptKeys make_kept_keys(const AttentionHeads& heads, int64_t capacity);

// The same in memory that is there: kept_floats() of f32, contiguous. Where those of many layers
// and sequences are one block of memory, its pages can be large, and a step reads all of it: with
// small pages it takes nearly twice the time.
int64_t kept_floats(const AttentionHeads& heads, int64_t capacity);
KeptKeys kept_keys_in(const at::Tensor& memory, const AttentionHeads& heads, int64_t capacity);

// The same keys and values with room for `capacity` positions or some more, which is no less than
// there was.
KeptKeys with_room(const KeptKeys& kept, const AttentionHeads& heads, int64_t capacity);

// A sequence of a batch: its new tokens come behind the `length` that are kept, which come behind
// the first `prefix_length` of `prefix`.
struct KeptSequence {
  KeptKeys own;
  int64_t length = 0;
  KeptKeys prefix = {};  // undefined where there is none
  int64_t prefix_length = 0;
};

// qkv [T, (H + 2 G) A] as of causal_attention(), f32 or bf16; sequence i has the next lengths[i]
// tokens, all positive, whose keys and values are put behind those of kept[i]; rotation [T, A] of
// each token's position. -> [T, H A] in qkv's type, computed in f32. Not differentiable.
at::Tensor cached_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::vector<int64_t>& lengths,
                            const std::vector<KeptSequence>& kept, const Rotation& rotation);

// One sequence, as pointers: keys and values of one group as above.
struct KeptRun {
  float *keys, *values;
  int64_t length;
};
template <typename Number>
void cached_attention_cpu(const AttentionInput<Number>& in, int64_t group, const KeptRun& prefix,
                          const KeptRun& own, Number* out);

}  // namespace moe::kernels
