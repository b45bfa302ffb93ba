#pragma once
// causal_attention_forward_cpu() and its backward (kernels/ops/causal_attention.h) with products of
// bf16: their operands are rounded, sums, softmaxes and what is kept for backward stay f32.
//
//   forward   s = q k / sqrt(A), y = (e v) / sum e with e = exp(s - max s)
//   backward  p = exp(s - log sum e), dp = dy v, ds = p (dp - dy y); dv += p dy, dq = ds k, dk +=
//   ds q
//
// q (scaled) and k are rounded after their rotation, e, p and ds once they are made; v and dy are
// bf16 as they come. The sum of e is that of the numbers before they are rounded.

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/ops/causal_attention.h"

namespace moe::kernels {

// By any of bf16_tile_kernels().
void causal_attention_forward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                   int64_t group, uint16_t* out, float* log_sum);
void causal_attention_backward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                    int64_t group, const uint16_t* out, const float* log_sum,
                                    const uint16_t* grad_out, uint16_t* grad_qkv);

}  // namespace moe::kernels
