#pragma once
// Arithmetic without branches and calls, which the compiler vectorises in a loop, and AVX-512
// transposes of sixteen columns. MOE_VECTOR_CLONES compiles a function for each instruction set;
// the loader selects one that the CPU supports.

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Empty for clang (clang-tidy), which cannot clone a template, and for the thread sanitizer, whose
// library is not linked yet when the resolver runs.
#if defined(__clang__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define MOE_VECTOR_CLONES
#else
#define MOE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

namespace moe::kernels {

// Returns exp(x) to 2 ulp, with x clamped to [-87, 87]; NaN stays NaN. Reduction of Cody and Waite,
// then the polynomial of Cephes' expf.
inline float vector_exp(float x) {
  constexpr float kMax = 87.0F, kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  float clamped = x < -kMax ? -kMax : x;
  clamped = clamped > kMax ? kMax : clamped;
  const float shifted = clamped * 1.44269504F + kRound;
  const float whole = shifted - kRound;
  const float r = (clamped - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// Returns exp(x) for x <= 0; 0 below -87.
inline float vector_exp_negative(float x) { return x < -87.0F ? 0.0F : vector_exp(x); }

inline float widen(float value) { return value; }
inline float widen(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

// Converts IEEE half precision to f32, exactly.
inline float widen_f16(uint16_t f16) {
  constexpr uint32_t kExponent = 0x7C00U << 13, kBias = 112U << 23;  // 127 - 15
  const uint32_t bits = (uint32_t{f16} & 0x7FFFU) << 13, exponent = bits & kExponent;
  uint32_t value = bits + kBias;
  value = exponent == kExponent ? value + kBias : value;  // infinity and NaN
  // A subnormal is the fraction without the leading 1 of 2^-14.
  const float subnormal = std::bit_cast<float>(bits + kBias + (1U << 23)) - 0x1p-14F;
  value = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : value;
  return std::bit_cast<float>(value | (uint32_t{f16} & 0x8000U) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline void narrow_to(float value, float& out) { out = value; }
inline void narrow_to(float value, uint16_t& bf16) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  bf16 = static_cast<uint16_t>(value == value ? rounded : 0x7FC0);
}

// Rounds to bf16 and returns f32, in 32-bit lanes throughout.
inline float rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U;
  return std::bit_cast<float>(value == value ? rounded : 0x7FC00000U);
}

// Transposes in registers: element j of from[i] becomes element i of to[j].
using Float4 [[gnu::vector_size(16)]] = float;
[[gnu::always_inline]] inline void transpose_4x4(const Float4 (&from)[4], Float4 (&to)[4]) {
  const Float4 low = __builtin_shufflevector(from[0], from[1], 0, 4, 1, 5);
  const Float4 low2 = __builtin_shufflevector(from[2], from[3], 0, 4, 1, 5);
  const Float4 high = __builtin_shufflevector(from[0], from[1], 2, 6, 3, 7);
  const Float4 high2 = __builtin_shufflevector(from[2], from[3], 2, 6, 3, 7);
  to[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
  to[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
  to[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
  to[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}

// Reduces `count` f32 terms with `join`, whose neutral element is `start`. Returns the reduction of
// the last count % kLanes terms; reduces each other term(i) into lane[i % kLanes]. The order is
// equal for all instruction sets.
template <typename Total, int64_t kLanes, typename Term, typename Join>
[[gnu::always_inline]] inline Total reduce_lanes(int64_t count, float start, Term term, Join join,
                                                 float (&lane)[kLanes]) {
  for (float& each : lane) {
    each = start;
  }
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] = join(lane[k], term(i + k));
    }
  }
  Total total = start;
  for (int64_t i = whole; i < count; ++i) {
    total = join(total, term(i));
  }
  return total;
}

// Returns the reduction of term(0) .. term(count - 1). The last joins are computed as Total.
template <typename Total, typename Term, typename Join>
[[gnu::always_inline]] inline Total vector_reduce(int64_t count, float start, Term term,
                                                  Join join) {
  float lane[16];
  Total total = reduce_lanes<Total>(count, start, term, join, lane);
  for (const float part : lane) {
    total = join(total, part);
  }
  return total;
}

template <typename Total, typename Term>
[[gnu::always_inline]] inline Total vector_sum(int64_t count, Term term) {
  return vector_reduce<Total>(count, 0.0F, term,
                              [](auto total, float value) { return total + value; });
}

// Returns the maximum of `count` numbers, -infinity for none. Ignores NaNs.
float row_max(const float* row, int64_t count);

// Transposes sixteen columns of f32 or bf16, `stride` elements apart, of k contiguous elements
// each: to[p * width + r] = element p of column r, as f32. REQUIRES: has_avx512_transpose().
void transpose_to_f32(const float* from, int64_t stride, int64_t k, int64_t width, float* to);
void transpose_to_f32(const uint16_t* from, int64_t stride, int64_t k, int64_t width, float* to);

// Returns true if the CPU supports transpose_to_f32() and the functions below.
inline bool has_avx512_transpose() {
#if defined(__x86_64__)
  static const bool is_supported =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return is_supported;
#else
  return false;
#endif
}

#if defined(__x86_64__)

#define MOE_AVX512_TARGET gnu::target("avx512f,avx512bw,avx512vl")

// Transposes in registers: word j of row[i] becomes word i of row[j]. Steps: pairs, fours within
// each 128-bit lane, lanes. Intrinsics with a full mask, because GCC 12 warns about those without
// (GCC bug 105593); they compile to the same instructions.
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

// Loads sixteen words: 16 f32 or 32 bf16. Elements from `count` on are zero and not read.
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

// Widens element kHalf (0 or 1) of words of two bf16.
template <int kHalf>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline __m512 widened_half(__m512i words) {
  return _mm512_castsi512_ps(
      kHalf == 0 ? _mm512_maskz_slli_epi32(0xFFFF, words, 16)
                 : _mm512_maskz_and_epi32(0xFFFF, words,
                                          _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

#endif

}  // namespace moe::kernels
