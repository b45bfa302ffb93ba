#pragma once
// Causal self-attention of training over packed sequences, rotary position embedding included, in
// one autograd node:
//
//   out_i = sum_{j <= i} p_ij v_j    p_i = softmax_j(q_i k_j / sqrt(A)),   q, k rotated
//
// with d v_j = sum_i p_ij d out_i and, with s_ij = p_ij (d out_i v_j - d out_i out_i),
// d q_i = sum_j s_ij k_j / sqrt(A), d k_j = sum_i s_ij q_i / sqrt(A)  (Dao et al. 2022,
// "FlashAttention", appendix B). Probabilities are computed again in backward from one number a
// row, so nothing of size S * S is kept.
//
// LibTorch's CPU kernel calls its matrix library for pieces of 32 rows and reaches a third of its
// speed at narrow heads. Here pieces go straight to kernels/cpu/gemm.h, above the diagonal nothing
// is computed, and queries, keys and values are read where the product before left them.
//
// T tokens, H query heads, G key/value heads (H a multiple), A head width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moe::kernels {

struct AttentionHeads {
  int64_t heads, kv_heads, width;  // H, G, A
  int64_t row() const { return (heads + 2 * kv_heads) * width; }
};

// Of positions 0 .. P-1, [P, A] f32 each, both halves of a row alike (rotate_half order).
struct Rotation {
  at::Tensor cosine, sine;
};

// True where causal_attention serves tensors like `qkv`: f32 or bf16 on the CPU.
bool has_causal_attention(const at::Tensor& qkv);

// qkv [T, (H + 2 G) A]: query heads, key heads, value heads of every token; sequence i is the next
// lengths[i] tokens, none longer than P. -> [T, H A] in its type, computed in f32; of bf16, where
// the processor multiplies that, products take rounded operands
// (kernels/cpu/causal_attention_bf16.h). Differentiable
// in qkv. Kept for backward: qkv, the result, one f32 a token and head. The same numbers for any
// number of threads.
at::Tensor causal_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::vector<int64_t>& lengths, const Rotation& rotation);

// The same where sequence i continues the earlier sequence continues[i] (-1: none): its tokens see
// all of that one besides their own, and its positions count on from there; none is longer than P
// with what it continues. What is continued continues none itself. Not differentiable.
at::Tensor shared_prefix_attention(const at::Tensor& qkv, const AttentionHeads& heads,
                                   const std::vector<int64_t>& lengths,
                                   const std::vector<int64_t>& continues, const Rotation& rotation);

// One sequence, as pointers. qkv [length, (H + 2 G) A]; out, grad_out [length, H A]; log_sum
// [length, H]; cosine, sine [length, A], of its tokens' positions; heads of group `group` of G
// alone. Number is float, or uint16_t for the bits of bf16.
template <typename Number>
struct AttentionInput {
  const Number* qkv;
  const float *cosine, *sine;
  int64_t length;
  AttentionHeads heads;
  int64_t position = 0;  // of its first token, which is how many keys all of them see
};
template <typename Number>
void causal_attention_forward_cpu(const AttentionInput<Number>& in, int64_t group, Number* out,
                                  float* log_sum);
template <typename Number>
void causal_attention_backward_cpu(const AttentionInput<Number>& in, int64_t group,
                                   const Number* out, const float* log_sum, const Number* grad_out,
                                   Number* grad_qkv);

// A sequence and those that continue it, whose position is its length; outputs as `out` above.
template <typename Number>
struct PrefixOutputs {
  Number* prefix;
  std::vector<Number*> branches;
};
template <typename Number>
void shared_prefix_attention_cpu(const AttentionInput<Number>& prefix,
                                 std::span<const AttentionInput<Number>> branches, int64_t group,
                                 const PrefixOutputs<Number>& outs, float* log_sum);

}  // namespace moe::kernels
