// What is packed in f32: sixteen columns at a time.

#include "kernels/cpu/transpose_words.h"

#include <cstdlib>

namespace moe::kernels {

namespace {

#if defined(__x86_64__)
// Vector i of sixteen transposed words as rows of numbers: one row of f32, or two of bf16.
template <typename Number>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void put_widened(__m512i words, int64_t width,
                                                                  int64_t rows, float* to) {
  if constexpr (sizeof(Number) == sizeof(float)) {
    _mm512_storeu_si512(to, words);
  } else {
    _mm512_storeu_ps(to, widened_half<0>(words));
    if (rows > 1) {
      _mm512_storeu_ps(to + width, widened_half<1>(words));
    }
  }
}

// Sixteen columns of f32 or bf16, `stride` numbers apart: to[p * width + r] = the number p of
// column r, as f32.
template <typename Number>
[[MOE_AVX512_TARGET]] void widen_columns(const Number* from, int64_t stride, int64_t k,
                                         int64_t width, float* to) {
  constexpr int64_t kOfWord = sizeof(float) / sizeof(Number), kNumbers = 16 * kOfWord;
  for (int64_t p = 0; p < k; p += kNumbers) {
    __m512i word[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      const Number* column = from + r * stride + p;
      __builtin_prefetch(column + 16 * stride);  // the next sixteen, which no core foresees
      word[r] = sixteen_words(column, k - p);
    }
    transpose_words(word);
    float* row = to + p * width;
    if (k - p >= kNumbers) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        put_widened<Number>(word[i], width, kOfWord, row + i * kOfWord * width);
      }
    } else {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        if (p + i * kOfWord < k) {
          put_widened<Number>(word[i], width, k - p - i * kOfWord, row + i * kOfWord * width);
        }
      }
    }
  }
}
#else
template <typename Number>
void widen_columns(const Number* /*from*/, int64_t /*stride*/, int64_t /*k*/, int64_t /*width*/,
                   float* /*to*/) {
  std::abort();
}
#endif

}  // namespace

void widen_sixteen_columns(const float* from, int64_t stride, int64_t k, int64_t width, float* to) {
  widen_columns(from, stride, k, width, to);
}

void widen_sixteen_columns(const uint16_t* from, int64_t stride, int64_t k, int64_t width,
                           float* to) {
  widen_columns(from, stride, k, width, to);
}

}  // namespace moe::kernels
