// Sixteen columns at a time: kernels/cpu/transpose_words.h.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/transpose_words.h"

#if defined(__x86_64__)

namespace moe::kernels {

namespace {

// A piece of each column, transposed, with its numbers of every row.
template <typename Number, int kRows>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void add_transposed(const __m512i (&word)[16],
                                                                     const float* a, int64_t a_row,
                                                                     __m512 (&sum)[kRows]) {
  constexpr int64_t kOfWord = sizeof(float) / sizeof(Number);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) {
    const __m512 first = kOfWord == 1 ? _mm512_castsi512_ps(word[i]) : widened_half<0>(word[i]);
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      const __m512 left = _mm512_set1_ps(a[row * a_row + i * kOfWord]);
      sum[row] = _mm512_fmadd_ps(left, first, sum[row]);
    }
    if constexpr (kOfWord == 2) {
      const __m512 second = widened_half<1>(word[i]);
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) {
        const __m512 left = _mm512_set1_ps(a[row * a_row + i * kOfWord + 1]);
        sum[row] = _mm512_fmadd_ps(left, second, sum[row]);
      }
    }
  }
}

// A piece of sixteen columns, of `left` numbers or more than a vector has. As many numbers of what
// is ahead are asked for meanwhile.
template <typename Number, bool kSoon, bool kLater>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void load_columns(const Number* from,
                                                                   int64_t stride, int64_t left,
                                                                   const LinesAhead<Number>& ahead,
                                                                   __m512i (&word)[16]) {
  constexpr int64_t kNumbers = 64 / sizeof(Number);
  if (left >= kNumbers) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      if constexpr (kSoon) {
        ask_soon(ahead.soon + r * kNumbers);
      }
      if constexpr (kLater) {
        ask_later(ahead.later + r * kNumbers);
      }
      word[r] = sixteen_words(from + r * stride, kNumbers);
    }
  } else {
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      word[r] = sixteen_words(from + r * stride, left);
    }
  }
}

// Columns j .. j + 15.
template <typename Number, int kRows, bool kSoon>
[[MOE_AVX512_TARGET]] void multiply_sixteen(const FewRows<Number>& in, int64_t j) {
  constexpr int64_t kNumbers = 64 / sizeof(Number);
  const Number* b = in.b + j * in.stride;
  // More rows take so long that a second request for what comes soon costs more than it brings.
  constexpr bool kLater = !kSoon || kRows <= 4;
  auto ahead = lines_ahead(b, in.stride, kColumnsOfFewRows, kSoon);
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    __m512 sum[kRows];
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      sum[row] = _mm512_setzero_ps();
    }
    for (int64_t p = begin; p < end; p += kNumbers) {
      __m512i word[16];
      load_columns<Number, kSoon, kLater>(b + p, in.stride, in.k - p, ahead, word);
      ahead.soon += 16 * kNumbers;
      ahead.later += 16 * kNumbers;
      transpose_words(word);
      add_transposed<Number>(word, in.a + p, in.padded, sum);
    }
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      float* c = in.c + row * in.c_row + j;
      const __m512 before = begin > 0 ? _mm512_loadu_ps(c) : _mm512_setzero_ps();
      _mm512_storeu_ps(c, _mm512_add_ps(sum[row], before));
    }
  }
}

template <typename Number, int kRows>
[[MOE_AVX512_TARGET]] void multiply_avx512(const FewRows<Number>& in) {
  const auto multiply = are_asked_for_soon(in, kColumnsOfFewRows)
                            ? multiply_sixteen<Number, kRows, true>
                            : multiply_sixteen<Number, kRows, false>;
  for (int64_t j = 0; j < in.columns; j += kColumnsOfFewRows) {
    multiply(in, j);
  }
}

template <typename Number>
void run_avx512(const FewRows<Number>& in) {
  static constexpr std::array<void (*)(const FewRows<Number>&), 8> kByRows = {
      multiply_avx512<Number, 1>, multiply_avx512<Number, 2>, multiply_avx512<Number, 3>,
      multiply_avx512<Number, 4>, multiply_avx512<Number, 5>, multiply_avx512<Number, 6>,
      multiply_avx512<Number, 7>, multiply_avx512<Number, 8>};
  kByRows.at(static_cast<size_t>(in.rows - 1))(in);
}

}  // namespace

FewRowsKernel few_rows_avx512() {
  return {8, run_avx512<float>, run_avx512<uint16_t>, /*fuses=*/true};
}

}  // namespace moe::kernels

#endif
