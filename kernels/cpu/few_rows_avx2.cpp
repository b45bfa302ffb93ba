// Eight columns at a time, two times eight for one row, whose sums would wait for each other.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/few_rows.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define MOE_AVX2_TARGET gnu::target("avx2,fma")

namespace moe::kernels {

namespace {

constexpr int64_t kEight = 8;  // words of a vector

// row[i] word j becomes row[j] word i: pairs, fours of the same column in each half, the halves.
[[MOE_AVX2_TARGET, gnu::always_inline]] inline void transpose_eight(__m256i (&row)[8]) {
  __m256i two[8];
#pragma GCC unroll 4
  for (size_t i = 0; i < 8; i += 2) {
    two[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
    two[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
  }
  __m256i four[8];
#pragma GCC unroll 2
  for (size_t i = 0; i < 8; i += 4) {
    four[i] = _mm256_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm256_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm256_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm256_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    row[i] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20);
    row[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
  }
}

// A piece of eight columns, of `left` numbers, or more than a vector has, and zeros behind them.
template <typename Number, bool kSoon>
[[MOE_AVX2_TARGET, gnu::always_inline]] inline void load_eight(const Number* from, int64_t stride,
                                                               int64_t left,
                                                               const LinesAhead<Number>& ahead,
                                                               __m256i (&word)[8]) {
  constexpr int64_t kNumbers = sizeof(__m256i) / sizeof(Number);
#pragma GCC unroll 4
  for (int64_t line = 0; line < 4; ++line) {  // as much as is read
    if constexpr (kSoon) {
      ask_soon(ahead.soon + 2 * line * kNumbers);
    }
    ask_later(ahead.later + 2 * line * kNumbers);
  }
  if (left >= kNumbers) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kEight; ++r) {
      word[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + r * stride));
    }
    return;
  }
  for (int64_t r = 0; r < kEight; ++r) {
    Number last[kNumbers] = {};
    std::copy_n(from + r * stride, left, last);
    std::memcpy(&word[r], last, sizeof(last));
  }
}

// A piece of each column, transposed, with its numbers of every row.
template <typename Number, int kRows>
[[MOE_AVX2_TARGET, gnu::always_inline]] inline void add_eight(const __m256i (&word)[8],
                                                              const float* a, int64_t a_row,
                                                              __m256 (&sum)[kRows]) {
  constexpr int64_t kOfWord = sizeof(float) / sizeof(Number);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kEight; ++i) {
    const __m256i low = kOfWord == 1 ? word[i] : _mm256_slli_epi32(word[i], 16);
#pragma GCC unroll 4
    for (int64_t row = 0; row < kRows; ++row) {
      const __m256 left = _mm256_broadcast_ss(a + row * a_row + i * kOfWord);
      sum[row] = _mm256_fmadd_ps(left, _mm256_castsi256_ps(low), sum[row]);
    }
    if constexpr (kOfWord == 2) {
      const __m256i high =
          _mm256_and_si256(word[i], _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)));
#pragma GCC unroll 4
      for (int64_t row = 0; row < kRows; ++row) {
        const __m256 left = _mm256_broadcast_ss(a + row * a_row + i * kOfWord + 1);
        sum[row] = _mm256_fmadd_ps(left, _mm256_castsi256_ps(high), sum[row]);
      }
    }
  }
}

// kGroups times eight columns from j on.
template <typename Number, int kRows, int kGroups, bool kSoon>
[[MOE_AVX2_TARGET]] void multiply_eights(const FewRows<Number>& in, int64_t j) {
  constexpr int64_t kNumbers = sizeof(__m256i) / sizeof(Number);
  const Number* b = in.b + j * in.stride;
  auto ahead = lines_ahead(b, in.stride, kGroups * kEight, kSoon);
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    __m256 sum[kGroups][kRows];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kGroups * kRows; ++i) {
      sum[i / kRows][i % kRows] = _mm256_setzero_ps();
    }
    for (int64_t p = begin; p < end; p += kNumbers) {
#pragma GCC unroll 2
      for (int64_t group = 0; group < kGroups; ++group) {
        __m256i word[8];
        load_eight<Number, kSoon>(b + group * kEight * in.stride + p, in.stride, in.k - p, ahead,
                                  word);
        ahead.soon += kEight * kNumbers;
        ahead.later += kEight * kNumbers;
        transpose_eight(word);
        add_eight<Number, kRows>(word, in.a + p, in.padded, sum[group]);
      }
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kGroups * kRows; ++i) {
      float* c = in.c + i % kRows * in.c_row + j + i / kRows * kEight;
      const __m256 before = begin > 0 ? _mm256_loadu_ps(c) : _mm256_setzero_ps();
      _mm256_storeu_ps(c, _mm256_add_ps(sum[i / kRows][i % kRows], before));
    }
  }
}

template <typename Number, int kRows>
[[MOE_AVX2_TARGET]] void multiply_avx2(const FewRows<Number>& in) {
  constexpr int kGroups = kRows == 1 ? 2 : 1;
  const auto multiply = are_asked_for_soon(in, kGroups * kEight)
                            ? multiply_eights<Number, kRows, kGroups, true>
                            : multiply_eights<Number, kRows, kGroups, false>;
  for (int64_t j = 0; j < in.columns; j += kGroups * kEight) {
    multiply(in, j);
  }
}

template <typename Number>
void run_avx2(const FewRows<Number>& in) {
  static constexpr std::array<void (*)(const FewRows<Number>&), 4> kByRows = {
      multiply_avx2<Number, 1>, multiply_avx2<Number, 2>, multiply_avx2<Number, 3>,
      multiply_avx2<Number, 4>};
  kByRows.at(static_cast<size_t>(in.rows - 1))(in);
}

}  // namespace

FewRowsKernel few_rows_avx2() { return {4, run_avx2<float>, run_avx2<uint16_t>, /*fuses=*/true}; }

}  // namespace moe::kernels

#endif
