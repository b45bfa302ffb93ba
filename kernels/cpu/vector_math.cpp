#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <cstdlib>

namespace moe::kernels {

namespace {

#if defined(__x86_64__)
// Stores transposed words as rows: one row of f32, or two rows of bf16 as f32.
template <typename Number>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void store_widened(__m512i words, int64_t width,
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

template <typename Number>
[[MOE_AVX512_TARGET]] void widen_columns(const Number* from, int64_t stride, int64_t k,
                                         int64_t width, float* to) {
  constexpr int64_t kPerWord = sizeof(float) / sizeof(Number), kNumbers = 16 * kPerWord;
  for (int64_t p = 0; p < k; p += kNumbers) {
    __m512i word[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      const Number* column = from + r * stride + p;
      __builtin_prefetch(column + 16 * stride);  // the hardware does not prefetch these columns
      word[r] = sixteen_words(column, k - p);
    }
    transpose_words(word);
    float* row = to + p * width;
    if (k - p >= kNumbers) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        store_widened<Number>(word[i], width, kPerWord, row + i * kPerWord * width);
      }
    } else {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        if (p + i * kPerWord < k) {
          store_widened<Number>(word[i], width, k - p - i * kPerWord, row + i * kPerWord * width);
        }
      }
    }
  }
}
#else
constexpr auto widen_columns = [](auto...) { std::abort(); };
#endif

}  // namespace

MOE_VECTOR_CLONES float row_max(const float* row, int64_t count) {
  return vector_reduce<float>(
      count, -INFINITY, [=](int64_t i) { return row[i]; },
      [](float max, float value) { return value > max ? value : max; });
}

void transpose_to_f32(const float* from, int64_t stride, int64_t k, int64_t width, float* to) {
  widen_columns(from, stride, k, width, to);
}

void transpose_to_f32(const uint16_t* from, int64_t stride, int64_t k, int64_t width, float* to) {
  widen_columns(from, stride, k, width, to);
}

}  // namespace moe::kernels
