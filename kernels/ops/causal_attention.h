#pragma once
// Causal self-attention over packed sequences, rotary position embedding included: for training as
// one autograd node, and for generation with a key/value cache.
//
//   out_i = sum_{j <= i} p_ij v_j    p_i = softmax_j(q_i k_j / sqrt(A)),   q, k rotated
//
// with d v_j = sum_i p_ij d out_i and, with s_ij = p_ij (d out_i v_j - d out_i out_i),
// d q_i = sum_j s_ij k_j / sqrt(A), d k_j = sum_i s_ij q_i / sqrt(A)  (Dao et al. 2022,
// "FlashAttention", appendix B). Backward recomputes the probabilities from one f32 per row, so
// that nothing of size S * S is saved.
//
// The kernels use kernels/cpu/gemm.h, skip the blocks above the diagonal, and read queries, keys
// and values from the output of the projection.
//
// T tokens, H query heads, G key/value heads (H is a multiple), A head width, P positions.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moe::kernels {

struct AttentionHeads {
  int64_t heads, kv_heads, width;                                 // H, G, A
  int64_t row() const { return (heads + 2 * kv_heads) * width; }  // width of qkv
};

// Tables [P, A] f32, one row per position; both halves of a row are equal (rotate_half order).
struct Rotation {
  at::Tensor cosine, sine;
};

// Returns true if causal_attention() supports tensors like `qkv`: f32 or bf16 on the CPU.
bool has_causal_attention(const at::Tensor& qkv);

// Returns [T, H A] in the dtype of qkv, computed in f32. qkv [T, (H + 2 G) A]: query heads, key
// heads and value heads of each token. Sequence i is the next lengths[i] <= P tokens. With bf16
// qkv, CPUs with bf16 products round the operands (kernels/cpu/causal_attention.h). Differentiable
// in qkv. Autograd saves qkv, the result and one f32 per token and head. The result does not depend
// on the number of threads.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::vector<int64_t>& lengths, const Rotation& rotation);

// Returns the maximum number of positions of a sequence, its prefix included. prefix_index as
// below, or empty.
int64_t max_positions(const std::vector<int64_t>& lengths,
                      const std::vector<int64_t>& prefix_index);

// causal_attention() for sequences with shared prefixes. Sequence i continues sequence
// prefix_index[i] < i (-1: none): its tokens also attend to the whole prefix, and its positions
// start at the length of the prefix. REQUIRES: a sequence and its prefix have at most P positions
// together, and a prefix has no prefix. Not differentiable.
at::Tensor shared_prefix_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                                   const std::vector<int64_t>& lengths,
                                   const std::vector<int64_t>& prefix_index,
                                   const Rotation& rotation);

inline constexpr int64_t kKeyBlock = 16;  // positions in a block of cached keys

// Cached keys (rotated) and values of one sequence in one layer, f32, in the order in which a
// generation step reads them.
struct KvBlock {
  at::Tensor keys;    // [G, capacity / kKeyBlock, A, kKeyBlock]; position p is
                      // [g, p / kKeyBlock, :, p % kKeyBlock]
  at::Tensor values;  // [G, capacity, A]
};

// Returns an uninitialised KvBlock for at least `capacity` positions.
KvBlock make_kv_block(const AttentionHeads& heads, int64_t capacity);

// Returns the number of f32 elements of a KvBlock.
int64_t kv_numel(const AttentionHeads& heads, int64_t capacity);
// Returns a KvBlock in `memory` [kv_numel()] f32, contiguous. One allocation for many layers and
// sequences can use huge pages, which nearly halves the time of a generation step.
KvBlock view_kv_block(const at::Tensor& memory, const AttentionHeads& heads, int64_t capacity);

// Returns a copy of `block` with room for `capacity` positions, at least as many as in `block`.
KvBlock grow_kv_block(const KvBlock& block, const AttentionHeads& heads, int64_t capacity);

// Key/value cache of one sequence of a batch. Positions are ordered: prefix, cached, new tokens.
struct KvCacheView {
  KvBlock own;
  int64_t length = 0;   // cached positions of `own`
  KvBlock prefix = {};  // shared with other sequences; undefined: none
  int64_t prefix_length = 0;
};

// Returns [T, H A] in the dtype of qkv, computed in f32. qkv as in causal_attention(); sequence i
// has the next lengths[i] > 0 tokens. rotation [T, A] has a row per token. Appends the keys and
// values of the tokens to caches[i].own; the caller updates caches[i].length. CPU only, not
// differentiable.
at::Tensor cached_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::vector<int64_t>& lengths,
                            const std::vector<KvCacheView>& caches, const Rotation& rotation);

// Input of the kernels on plain memory, which compute the heads of one of the G groups for one
// sequence. T is float, or uint16_t for the bits of bf16.
template <typename T>
struct AttentionInput {
  const T* qkv;                // [length, (H + 2 G) A]
  const float *cosine, *sine;  // [length, A], for the positions of the tokens
  int64_t length;
  AttentionHeads heads;
  int64_t position = 0;  // position of the first token, equal to the number of earlier keys
};

// Outputs of a prefix and of the sequences that continue it.
template <typename T>
struct PrefixOutputs {
  T* prefix;
  std::vector<T*> branches;
};

// Cached keys and values of one group, as in KvBlock.
struct KvRun {
  float *keys, *values;
  int64_t length;
};

// CPU kernels. out, grad_out [length, H A]; log_sum [length, H]; grad_qkv has the shape of qkv.
template <typename T>
struct AttentionCpu {
  static void forward(const AttentionInput<T>& in, int64_t group, T* out, float* log_sum);
  static void backward(const AttentionInput<T>& in, int64_t group, const T* out,
                       const float* log_sum, const T* grad_out, T* grad_qkv);
  // REQUIRES: position of each branch = prefix.length. log_sum [prefix.length, H] may be null.
  static void shared_prefix(const AttentionInput<T>& prefix,
                            std::span<const AttentionInput<T>> branches, int64_t group,
                            const PrefixOutputs<T>& outs, float* log_sum);
  static void cached(const AttentionInput<T>& in, int64_t group, const KvRun& prefix,
                     const KvRun& own, T* out);
};

}  // namespace moe::kernels
