#include "kernels/cpu/bf16_words.h"

#include <cstddef>

#include "kernels/cpu/vector_math.h"

#if !defined(__x86_64__)
#include <cstdlib>
#endif

namespace moe::kernels {

namespace {

inline uint32_t bf16_bits(uint16_t bf16) { return bf16; }
inline uint32_t bf16_bits(float value) {
  return std::bit_cast<uint32_t>(rounded_to_bf16(value)) >> 16;
}

template <typename Number>
MOE_VECTOR_CLONES void pack_pairs_portable(const Number* first, const Number* second, int64_t count,
                                           float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(bf16_bits(first[i]) | bf16_bits(second[i]) << 16);
  }
}

#if defined(__x86_64__)
#define MOE_BF16_TARGET [[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]

// Returns the mask of the first `count` of 16 lanes; `count` may be negative or above 16.
MOE_BF16_TARGET inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xFFFF : count <= 0 ? 0 : static_cast<__mmask16>((1U << count) - 1);
}
MOE_BF16_TARGET inline __m512i round_two(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Loads sixteen words of two bf16; elements from `count` on are zero.
MOE_BF16_TARGET inline __m512i words_at(const float* from, int64_t count) {
  if (count >= 32) {
    return round_two(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16));
  }
  return round_two(_mm512_maskz_loadu_ps(first_lanes(count), from),
                   _mm512_maskz_loadu_ps(first_lanes(count - 16), from + 16));
}
MOE_BF16_TARGET inline __m512i words_at(const uint16_t* from, int64_t count) {
  return sixteen_words(from, count);
}

MOE_BF16_TARGET void f32_to_bf16_avx512(const float* from, int64_t count, uint16_t* bf16) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    _mm512_storeu_si512(bf16 + i, words_at(from + i, 32));
  }
  if (i < count) {
    _mm512_mask_storeu_epi16(bf16 + i, (__mmask32{1} << (count - i)) - 1,
                             words_at(from + i, count - i));
  }
}

// Interleaves 16-bit lanes 0 .. 15 and 16 .. 31 into words.
MOE_BF16_TARGET inline __m512i interleave(__m512i halves) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

// Loads 16-bit lanes: bf16 of `first` in the lower half, of `second` in the upper half.
MOE_BF16_TARGET inline __m512i halves_at(const float* first, const float* second, __mmask16 lanes) {
  return round_two(_mm512_maskz_loadu_ps(lanes, first), _mm512_maskz_loadu_ps(lanes, second));
}
MOE_BF16_TARGET inline __m512i halves_at(const uint16_t* first, const uint16_t* second,
                                         __mmask16 lanes) {
  return _mm512_maskz_inserti64x4(0xFF,
                                  _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, first)),
                                  _mm256_maskz_loadu_epi16(lanes, second), 1);
}

template <typename Number>
MOE_BF16_TARGET void pack_pairs_avx512(const Number* first, const Number* second, int64_t count,
                                       float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_si512(to + i, interleave(halves_at(first + i, second + i, 0xFFFF)));
  }
  if (i < count) {
    const __mmask16 rest = first_lanes(count - i);
    _mm512_mask_storeu_epi32(to + i, rest, interleave(halves_at(first + i, second + i, rest)));
  }
}

// Prefetches 32 elements of a column of the next sixteen, which the hardware does not prefetch.
template <typename Number>
MOE_BF16_TARGET inline void prefetch_columns(const Number* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  if (sizeof(Number) == 4) {
    _mm_prefetch(reinterpret_cast<const char*>(from + 16), _MM_HINT_T0);
  }
}

template <typename Number>
MOE_BF16_TARGET void transpose_pairs_avx512(const Number* from, int64_t stride, int64_t k,
                                            int64_t width, float* to) {
  for (int64_t p = 0; p < k; p += 32) {
    __m512i row[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      const Number* column = from + r * stride + p;
      prefetch_columns(column + 16 * stride);
      row[r] = words_at(column, k - p);
    }
    transpose_words(row);
    float* words = to + p / 2 * width;
    const int64_t count = (k - p + 1) / 2;
#pragma GCC unroll 16
    for (int64_t word = 0; word < 16; ++word) {
      if (word < count) {
        _mm512_storeu_si512(words + word * width, row[word]);
      }
    }
  }
}

#else
constexpr auto kUnsupported = [](auto...) { std::abort(); };
constexpr auto f32_to_bf16_avx512 = kUnsupported, pack_pairs_avx512 = kUnsupported,
               transpose_pairs_avx512 = kUnsupported;
#endif

}  // namespace

bool has_avx512_bf16() {
#if defined(__x86_64__)
  static const bool is_supported = has_avx512_transpose() && __builtin_cpu_supports("avx512bf16");
  return is_supported;
#else
  return false;
#endif
}

void f32_to_bf16_ftz(const float* from, int64_t count, uint16_t* bf16) {
  has_avx512_bf16() ? f32_to_bf16_avx512(from, count, bf16) : f32_to_bf16(from, count, bf16);
}

void pack_bf16_pairs(const float* first, const float* second, int64_t count, float* to) {
  has_avx512_bf16() ? pack_pairs_avx512(first, second, count, to)
                    : pack_pairs_portable(first, second, count, to);
}

void pack_bf16_pairs(const uint16_t* first, const uint16_t* second, int64_t count, float* to) {
  has_avx512_bf16() ? pack_pairs_avx512(first, second, count, to)
                    : pack_pairs_portable(first, second, count, to);
}

void transpose_bf16_pairs(const float* from, int64_t stride, int64_t k, int64_t width, float* to) {
  transpose_pairs_avx512(from, stride, k, width, to);
}

void transpose_bf16_pairs(const uint16_t* from, int64_t stride, int64_t k, int64_t width,
                          float* to) {
  transpose_pairs_avx512(from, stride, k, width, to);
}

MOE_VECTOR_CLONES void bf16_to_f32(const uint16_t* bf16, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen(bf16[i]);
  }
}

MOE_VECTOR_CLONES void f16_to_f32(const uint16_t* f16, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen_f16(f16[i]);
  }
}

MOE_VECTOR_CLONES void f32_to_bf16(const float* from, int64_t count, uint16_t* bf16) {
  for (int64_t i = 0; i < count; ++i) {
    narrow_to(from[i], bf16[i]);
  }
}

MOE_VECTOR_CLONES void round_to_bf16(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = rounded_to_bf16(from[i]);
  }
}

}  // namespace moe::kernels
