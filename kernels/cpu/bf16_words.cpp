#include "kernels/cpu/bf16_words.h"

#include <cstddef>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/transpose_words.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstdlib>
#endif

namespace moe::kernels {

#if defined(__x86_64__)
#define MOE_BF16_TARGET [[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]

namespace {

// The first `count` of 16 or 32 lanes.
MOE_BF16_TARGET inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xFFFF : count <= 0 ? 0 : static_cast<__mmask16>((1U << count) - 1);
}
MOE_BF16_TARGET inline __mmask32 first_halves(int64_t count) {
  return count >= 32 ? ~0U : count <= 0 ? 0 : (1U << count) - 1;
}

MOE_BF16_TARGET inline __m512i two_rounded(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Numbers that follow each other in memory, as sixteen words; 0 past the first `count`.
MOE_BF16_TARGET inline __m512i words_at(const float* from, int64_t count) {
  if (count >= 32) {
    return two_rounded(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16));
  }
  return two_rounded(_mm512_maskz_loadu_ps(first_lanes(count), from),
                     _mm512_maskz_loadu_ps(first_lanes(count - 16), from + 16));
}
MOE_BF16_TARGET inline __m512i words_at(const uint16_t* from, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(from)
                     : _mm512_maskz_loadu_epi16(first_halves(count), from);
}

MOE_BF16_TARGET void narrow_numbers(const float* from, int64_t count, uint16_t* bf16) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    _mm512_storeu_si512(bf16 + i, words_at(from + i, 32));
  }
  if (i < count) {
    _mm512_mask_storeu_epi16(bf16 + i, first_halves(count - i), words_at(from + i, count - i));
  }
}

// Lanes 0 .. 15 of sixteen bits beside lanes 16 .. 31, each pair as one word.
MOE_BF16_TARGET inline __m512i interleaved(__m512i halves) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

MOE_BF16_TARGET void pair_rows(const float* first, const float* second, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i halves = two_rounded(_mm512_loadu_ps(first + i), _mm512_loadu_ps(second + i));
    _mm512_storeu_si512(to + i, interleaved(halves));
  }
  if (i < count) {
    const __mmask16 rest = first_lanes(count - i);
    const __m512i halves = two_rounded(_mm512_maskz_loadu_ps(rest, first + i),
                                       _mm512_maskz_loadu_ps(rest, second + i));
    _mm512_mask_storeu_epi32(to + i, rest, interleaved(halves));
  }
}

MOE_BF16_TARGET void pair_rows(const uint16_t* first, const uint16_t* second, int64_t count,
                               float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const auto* low = reinterpret_cast<const __m256i*>(first + i);
    const auto* high = reinterpret_cast<const __m256i*>(second + i);
    const __m512i halves = _mm512_maskz_inserti64x4(
        0xFF, _mm512_castsi256_si512(_mm256_loadu_si256(low)), _mm256_loadu_si256(high), 1);
    _mm512_storeu_si512(to + i, interleaved(halves));
  }
  if (i < count) {
    const __mmask16 rest = first_lanes(count - i);
    const __m512i halves = _mm512_maskz_inserti64x4(
        0xFF, _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(rest, first + i)),
        _mm256_maskz_loadu_epi16(rest, second + i), 1);
    _mm512_mask_storeu_epi32(to + i, rest, interleaved(halves));
  }
}

// Asks for the numbers behind a piece of 32 of a column: the next sixteen columns, which no core
// foresees.
template <typename Number>
MOE_BF16_TARGET inline void ask_for(const Number* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  if (sizeof(Number) == 4) {
    _mm_prefetch(reinterpret_cast<const char*>(from + 16), _MM_HINT_T0);
  }
}

template <typename Number>
MOE_BF16_TARGET void transpose_columns(const Number* from, int64_t stride, int64_t k, int64_t width,
                                       float* to) {
  for (int64_t p = 0; p < k; p += 32) {
    __m512i row[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      const Number* column = from + r * stride + p;
      ask_for(column + 16 * stride);
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

}  // namespace

bool has_bf16_instructions() {
  static const bool has_them = __builtin_cpu_supports("avx512bf16") &&
                               __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512vl");
  return has_them;
}
#else
namespace {

void narrow_numbers(const float* /*from*/, int64_t /*count*/, uint16_t* /*bf16*/) { std::abort(); }
template <typename Number>
void pair_rows(const Number* /*first*/, const Number* /*second*/, int64_t /*count*/,
               float* /*to*/) {
  std::abort();
}
template <typename Number>
void transpose_columns(const Number* /*from*/, int64_t /*stride*/, int64_t /*k*/, int64_t /*width*/,
                       float* /*to*/) {
  std::abort();
}

}  // namespace

bool has_bf16_instructions() { return false; }
#endif

void narrow_for_products(const float* from, int64_t count, uint16_t* bf16) {
  has_bf16_instructions() ? narrow_numbers(from, count, bf16) : f32_to_bf16(from, count, bf16);
}

void pair_for_products(const float* first, const float* second, int64_t count, float* to) {
  has_bf16_instructions() ? pair_rows(first, second, count, to)
                          : pair_bf16(first, second, count, to);
}

void pair_for_products(const uint16_t* first, const uint16_t* second, int64_t count, float* to) {
  has_bf16_instructions() ? pair_rows(first, second, count, to)
                          : pair_bf16(first, second, count, to);
}

void transpose_sixteen(const float* from, int64_t stride, int64_t k, int64_t width, float* to) {
  transpose_columns(from, stride, k, width, to);
}

void transpose_sixteen(const uint16_t* from, int64_t stride, int64_t k, int64_t width, float* to) {
  transpose_columns(from, stride, k, width, to);
}

}  // namespace moe::kernels
