#pragma once
// Kernels of causal attention with bf16 products, which AttentionCpu uses on CPUs that have them
// (kernels/ops/causal_attention.h).

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/ops/causal_attention.h"

namespace moe::kernels {

// AttentionCpu::forward() and backward() with bf16 products by one of bf16_tile_kernels().
// Operands are rounded to bf16; sums, softmaxes and log_sum are f32.
//
//   forward   s = q k / sqrt(A), y = (e v) / sum e with e = exp(s - max s)
//   backward  p = exp(s - log sum e), dp = dy v, ds = p (dp - dy y)
//             dv += p dy, dq = ds k, dk += ds q
//
// q (scaled) and k are rounded after their rotation, e, p and ds before their products. v and dy
// are stored in bf16. The sum of e is computed before e is rounded.
void causal_attention_forward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                   int64_t group, uint16_t* out, float* log_sum);
void causal_attention_backward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                    int64_t group, const uint16_t* out, const float* log_sum,
                                    const uint16_t* grad_out, uint16_t* grad_qkv);

}  // namespace moe::kernels
