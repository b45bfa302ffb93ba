#pragma once
// Sixteen columns of a matrix, each contiguous in memory, transposed in registers so that a vector
// holds one number of every column: what packs a matrix (kernels/cpu/gemm_pack.cpp,
// kernels/cpu/bf16_words.cpp) and what multiplies one as it lies (kernels/cpu/skinny_gemm.cpp). Of
// AVX-512 alone: on other processors they transpose four columns at a time.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::kernels {

// Sixteen columns of f32 or bf16, `stride` numbers apart, each of k numbers that follow each other
// in memory: to[p * width + r] = the number p of column r, as f32. Where
// transposes_sixteen_columns() alone.
void widen_sixteen_columns(const float* from, int64_t stride, int64_t k, int64_t width, float* to);
void widen_sixteen_columns(const uint16_t* from, int64_t stride, int64_t k, int64_t width,
                           float* to);

// Whether this processor has what follows.
inline bool transposes_sixteen_columns() {
#if defined(__x86_64__)
  static const bool transposes =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return transposes;
#else
  return false;
#endif
}

#if defined(__x86_64__)

#define MOE_AVX512_TARGET gnu::target("avx512f,avx512bw,avx512vl")

// row[i] word j becomes row[j] word i. Pairs, then fours of the same column in each quarter of a
// vector, then the quarters. Forms with a mask of all lanes, since GCC 12 warns of those without
// (its bug 105593); they are the same instructions.
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void transpose_words(__m512i (&row)[16]) {
  __m512i two[16];
#pragma GCC unroll 8
  for (size_t i = 0; i < 16; i += 2) {
    two[i] = _mm512_maskz_unpacklo_epi32(0xFFFF, row[i], row[i + 1]);
    two[i + 1] = _mm512_maskz_unpackhi_epi32(0xFFFF, row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 16; i += 4) {
    row[i] = _mm512_maskz_unpacklo_epi64(0xFF, two[i], two[i + 2]);
    row[i + 1] = _mm512_maskz_unpackhi_epi64(0xFF, two[i], two[i + 2]);
    row[i + 2] = _mm512_maskz_unpacklo_epi64(0xFF, two[i + 1], two[i + 3]);
    row[i + 3] = _mm512_maskz_unpackhi_epi64(0xFF, two[i + 1], two[i + 3]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const __m512i even = _mm512_maskz_shuffle_i32x4(0xFFFF, row[i], row[i + 4], 0x88);
    const __m512i odd = _mm512_maskz_shuffle_i32x4(0xFFFF, row[i], row[i + 4], 0xDD);
    const __m512i even2 = _mm512_maskz_shuffle_i32x4(0xFFFF, row[i + 8], row[i + 12], 0x88);
    const __m512i odd2 = _mm512_maskz_shuffle_i32x4(0xFFFF, row[i + 8], row[i + 12], 0xDD);
    row[i] = _mm512_maskz_shuffle_i32x4(0xFFFF, even, even2, 0x88);
    row[i + 4] = _mm512_maskz_shuffle_i32x4(0xFFFF, odd, odd2, 0x88);
    row[i + 8] = _mm512_maskz_shuffle_i32x4(0xFFFF, even, even2, 0xDD);
    row[i + 12] = _mm512_maskz_shuffle_i32x4(0xFFFF, odd, odd2, 0xDD);
  }
}

// Sixteen words that follow each other in memory: 16 numbers of f32, 32 of bf16. Zeros past the
// first `count` numbers, behind which nothing is read.
[[MOE_AVX512_TARGET, gnu::always_inline]] inline __m512i sixteen_words(const float* from,
                                                                       int64_t count) {
  return count >= 16 ? _mm512_loadu_si512(from)
                     : _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << count) - 1), from);
}
[[MOE_AVX512_TARGET, gnu::always_inline]] inline __m512i sixteen_words(const uint16_t* bf16,
                                                                       int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(bf16)
                     : _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, bf16);
}

// Numbers `half` (0 or 1) of words of two numbers of bf16, as f32.
template <int kHalf>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline __m512 widened_half(__m512i words) {
  return _mm512_castsi512_ps(
      kHalf == 0 ? _mm512_maskz_slli_epi32(0xFFFF, words, 16)
                 : _mm512_maskz_and_epi32(0xFFFF, words,
                                          _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

#endif

}  // namespace moe::kernels
