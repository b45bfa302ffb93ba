#pragma once
// Numbers of bf16 as products read them, two a word (Word::kTwoBF16 in kernels/cpu/gemm_tile.h):
// made by the instructions of a processor that has them (AVX512_BF16), by
// kernels/cpu/bf16_convert.h elsewhere. One instruction rounds 32 numbers, where arithmetic on
// their bits takes nine for 16; beside the products of an expert, which multiply each weight by 128
// rows, that was a third of the time. The instructions take numbers below 2^-126 for zero, as the
// products do.

#include <cstdint>

namespace moe::kernels {

bool has_bf16_instructions();

// To nearest, ties to even; NaN stays NaN.
void narrow_for_products(const float* from, int64_t count, uint16_t* bf16);

// to[i] = first[i] in the lower half of a word, second[i] in the upper.
void pair_for_products(const float* first, const float* second, int64_t count, float* to);
void pair_for_products(const uint16_t* first, const uint16_t* second, int64_t count, float* to);

// Sixteen columns, `stride` numbers apart, each of k numbers that follow each other in memory:
// to[p * width + r] = numbers 2 p and 2 p + 1 of column r, 0 past the last. Where there are
// instructions alone.
void transpose_sixteen(const float* from, int64_t stride, int64_t k, int64_t width, float* to);
void transpose_sixteen(const uint16_t* from, int64_t stride, int64_t k, int64_t width, float* to);

}  // namespace moe::kernels
