#pragma once
// Conversions of arrays between f32, bf16 and f16, and packing of bf16 into words of two elements
// (Word::kTwoBF16 in kernels/cpu/gemm_tile.h). Rounds to nearest, ties to even; NaN stays NaN.
//
// f32_to_bf16_ftz(), pack_bf16_pairs() and transpose_bf16_pairs() prepare operands of bf16 products
// with AVX512_BF16 if the CPU has it, which rounds 32 elements in one instruction instead of 18:
// without it, rounding takes a third of the time of products with 128 rows. The instructions flush
// numbers below 2^-126 to zero, as bf16 products do.

#include <cstdint>

namespace moe::kernels {

bool has_avx512_bf16();

void f32_to_bf16_ftz(const float* from, int64_t count, uint16_t* bf16);

// Writes to[i] = the word with first[i] in the lower half and second[i] in the upper half, as bf16.
void pack_bf16_pairs(const float* first, const float* second, int64_t count, float* to);
void pack_bf16_pairs(const uint16_t* first, const uint16_t* second, int64_t count, float* to);

// Transposes sixteen columns of k contiguous elements, `stride` elements apart: to[p * width + r] =
// elements 2 p and 2 p + 1 of column r, padded with 0. REQUIRES: has_avx512_bf16().
void transpose_bf16_pairs(const float* from, int64_t stride, int64_t k, int64_t width, float* to);
void transpose_bf16_pairs(const uint16_t* from, int64_t stride, int64_t k, int64_t width,
                          float* to);

// Portable conversions, compiled for each instruction set.
void bf16_to_f32(const uint16_t* bf16, int64_t count, float* to);
void f16_to_f32(const uint16_t* f16, int64_t count, float* to);  // IEEE half precision
void f32_to_bf16(const float* from, int64_t count, uint16_t* bf16);
// Rounds to bf16 and stores f32; `to` may be `from`.
void round_to_bf16(const float* from, int64_t count, float* to);

}  // namespace moe::kernels
