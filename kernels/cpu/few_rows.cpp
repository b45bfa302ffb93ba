// Kernels for few rows (skinny_gemm.h). AVX-512: sixteen columns at a time. AVX2: eight columns, or
// sixteen for a single row, to hide the latency of FMA. Portable: sixteen columns in groups of
// four.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/skinny_gemm.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Software prefetch, because the hardware prefetcher does not cross the boundaries of 4 KiB pages.
// Products that read a matrix of 270 MB reach 0.47 of the memory bandwidth without prefetch and
// 0.83 or more with it (tests/bench/README.md). Prefetching past the end of a mapping has no
// effect.
constexpr int64_t kL1Bytes = int64_t{1} << 14;  // maximum bytes of columns to prefetch into the L1
constexpr int64_t kL2PrefetchBytes = int64_t{1} << 15;  // prefetch distance, eight pages of 4 KiB

// Localities of __builtin_prefetch(). The L2 has more outstanding misses than the L1.
constexpr int kToL1 = 3, kToL2 = 2;

template <typename T>
struct PrefetchAddresses {
  const T *l1, *l2;
};

// Returns true if `columns` columns can be prefetched into the L1 cache.
template <typename T>
bool fits_l1(const FewRowsArgs<T>& in, int64_t columns) {
  return columns * in.ldb * static_cast<int64_t>(sizeof(T)) <= kL1Bytes;
}

// Returns the addresses to prefetch while `columns` columns at b are read. If the columns fit into
// the L1: the next columns for the L1, and b + kL2PrefetchBytes for the L2. Otherwise: the next
// columns for the L2.
template <typename T>
PrefetchAddresses<T> prefetch_addresses(const T* b, int64_t ldb, int64_t columns, bool fits_l1) {
  const T* next = b + columns * ldb;
  return {next, fits_l1 ? b + kL2PrefetchBytes / static_cast<int64_t>(sizeof(T)) : next};
}

#if defined(__x86_64__)

// --------------------------------------------------------------------- AVX-512

// Adds the products of each row's elements and transposed words of sixteen columns to its sums.
template <typename Number, int kRows>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void add_transposed(const __m512i (&word)[16],
                                                                     const float* a, int64_t a_row,
                                                                     __m512 (&sum)[kRows]) {
  constexpr int64_t kPerWord = sizeof(float) / sizeof(Number);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) {
    const __m512 first = kPerWord == 1 ? _mm512_castsi512_ps(word[i]) : widened_half<0>(word[i]);
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      const __m512 left = _mm512_set1_ps(a[row * a_row + i * kPerWord]);
      sum[row] = _mm512_fmadd_ps(left, first, sum[row]);
    }
    if constexpr (kPerWord == 2) {
      const __m512 second = widened_half<1>(word[i]);
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) {
        const __m512 left = _mm512_set1_ps(a[row * a_row + i * kPerWord + 1]);
        sum[row] = _mm512_fmadd_ps(left, second, sum[row]);
      }
    }
  }
}

// Loads one vector of each of sixteen columns, which have `left` more elements; missing elements
// are zero. Prefetches as many bytes as it reads.
template <typename Number, bool kFitsL1, bool kPrefetchL2>
[[MOE_AVX512_TARGET, gnu::always_inline]] inline void load_columns(
    const Number* from, int64_t stride, int64_t left, const PrefetchAddresses<Number>& ahead,
    __m512i (&word)[16]) {
  constexpr int64_t kNumbers = 64 / sizeof(Number);
  if (left >= kNumbers) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      if constexpr (kFitsL1) {
        __builtin_prefetch(ahead.l1 + r * kNumbers, 0, kToL1);
      }
      if constexpr (kPrefetchL2) {
        __builtin_prefetch(ahead.l2 + r * kNumbers, 0, kToL2);
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

// Computes columns j .. j + 15.
template <typename Number, int kRows, bool kFitsL1>
[[MOE_AVX512_TARGET]] void multiply_sixteen(const FewRowsArgs<Number>& in, int64_t j) {
  constexpr int64_t kNumbers = 64 / sizeof(Number);
  const Number* b = in.b + j * in.ldb;
  // With more than four rows, a second prefetch costs more than it saves.
  constexpr bool kPrefetchL2 = !kFitsL1 || kRows <= 4;
  auto ahead = prefetch_addresses(b, in.ldb, kColumnBlock, kFitsL1);
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    __m512 sum[kRows];
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      sum[row] = _mm512_setzero_ps();
    }
    for (int64_t p = begin; p < end; p += kNumbers) {
      __m512i word[16];
      load_columns<Number, kFitsL1, kPrefetchL2>(b + p, in.ldb, in.k - p, ahead, word);
      ahead.l1 += 16 * kNumbers;
      ahead.l2 += 16 * kNumbers;
      transpose_words(word);
      add_transposed<Number>(word, in.a + p, in.lda, sum);
    }
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      float* c = in.c + row * in.ldc + j;
      const __m512 before = begin > 0 ? _mm512_loadu_ps(c) : _mm512_setzero_ps();
      _mm512_storeu_ps(c, _mm512_add_ps(sum[row], before));
    }
  }
}

template <typename Number, int kRows = 8>
void run_avx512(const FewRowsArgs<Number>& in) {
  if constexpr (kRows > 1) {
    if (in.m < kRows) {
      return run_avx512<Number, kRows - 1>(in);
    }
  }
  const auto multiply = fits_l1(in, kColumnBlock) ? multiply_sixteen<Number, kRows, true>
                                                  : multiply_sixteen<Number, kRows, false>;
  for (int64_t j = 0; j < in.n; j += kColumnBlock) {
    multiply(in, j);
  }
}

// ------------------------------------------------------------------------ AVX2

#define MOE_AVX2_TARGET gnu::target("avx2,fma")

constexpr int64_t kEight = 8;  // words of a vector

// Transposes in registers: word j of row[i] becomes word i of row[j].
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

// Loads one vector of each of eight columns, which have `left` more elements; missing elements are
// zero. Prefetches as many bytes as it reads.
template <typename Number, bool kFitsL1>
[[MOE_AVX2_TARGET, gnu::always_inline]] inline void load_eight(
    const Number* from, int64_t stride, int64_t left, const PrefetchAddresses<Number>& ahead,
    __m256i (&word)[8]) {
  constexpr int64_t kNumbers = sizeof(__m256i) / sizeof(Number);
#pragma GCC unroll 4
  for (int64_t line = 0; line < 4; ++line) {
    if constexpr (kFitsL1) {
      __builtin_prefetch(ahead.l1 + 2 * line * kNumbers, 0, kToL1);
    }
    __builtin_prefetch(ahead.l2 + 2 * line * kNumbers, 0, kToL2);
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

// Adds the products of each row's elements and transposed words of eight columns to its sums.
template <typename Number, int kRows>
[[MOE_AVX2_TARGET, gnu::always_inline]] inline void add_eight(const __m256i (&word)[8],
                                                              const float* a, int64_t a_row,
                                                              __m256 (&sum)[kRows]) {
  constexpr int64_t kPerWord = sizeof(float) / sizeof(Number);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kEight; ++i) {
    const __m256i low = kPerWord == 1 ? word[i] : _mm256_slli_epi32(word[i], 16);
#pragma GCC unroll 4
    for (int64_t row = 0; row < kRows; ++row) {
      const __m256 left = _mm256_broadcast_ss(a + row * a_row + i * kPerWord);
      sum[row] = _mm256_fmadd_ps(left, _mm256_castsi256_ps(low), sum[row]);
    }
    if constexpr (kPerWord == 2) {
      const __m256i high =
          _mm256_and_si256(word[i], _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)));
#pragma GCC unroll 4
      for (int64_t row = 0; row < kRows; ++row) {
        const __m256 left = _mm256_broadcast_ss(a + row * a_row + i * kPerWord + 1);
        sum[row] = _mm256_fmadd_ps(left, _mm256_castsi256_ps(high), sum[row]);
      }
    }
  }
}

// Computes columns j .. j + 8 * kGroups - 1.
template <typename Number, int kRows, int kGroups, bool kFitsL1>
[[MOE_AVX2_TARGET]] void multiply_eights(const FewRowsArgs<Number>& in, int64_t j) {
  constexpr int64_t kNumbers = sizeof(__m256i) / sizeof(Number);
  const Number* b = in.b + j * in.ldb;
  auto ahead = prefetch_addresses(b, in.ldb, kGroups * kEight, kFitsL1);
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
        load_eight<Number, kFitsL1>(b + group * kEight * in.ldb + p, in.ldb, in.k - p, ahead, word);
        ahead.l1 += kEight * kNumbers;
        ahead.l2 += kEight * kNumbers;
        transpose_eight(word);
        add_eight<Number, kRows>(word, in.a + p, in.lda, sum[group]);
      }
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kGroups * kRows; ++i) {
      float* c = in.c + i % kRows * in.ldc + j + i / kRows * kEight;
      const __m256 before = begin > 0 ? _mm256_loadu_ps(c) : _mm256_setzero_ps();
      _mm256_storeu_ps(c, _mm256_add_ps(sum[i / kRows][i % kRows], before));
    }
  }
}

template <typename Number, int kRows = 4>
void run_avx2(const FewRowsArgs<Number>& in) {
  if constexpr (kRows > 1) {
    if (in.m < kRows) {
      return run_avx2<Number, kRows - 1>(in);
    }
  }
  constexpr int kGroups = kRows == 1 ? 2 : 1;
  const auto multiply = fits_l1(in, kGroups * kEight)
                            ? multiply_eights<Number, kRows, kGroups, true>
                            : multiply_eights<Number, kRows, kGroups, false>;
  for (int64_t j = 0; j < in.n; j += kGroups * kEight) {
    multiply(in, j);
  }
}

#endif

// -------------------------------------------------------------------- portable

// Loads four elements of a column as f32; elements from `count` on are zero.
template <typename Number>
[[gnu::always_inline]] inline void load_four(const Number* from, int64_t count, Float4& to) {
  if (count >= 4) {
    to = Float4{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
    return;
  }
  to = Float4{};
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen(from[i]);
  }
}

// Computes columns j .. j + 15 of one row.
template <typename Number>
[[gnu::always_inline]] inline void multiply_fours(const FewRowsArgs<Number>& in, int64_t row,
                                                  int64_t j) {
  constexpr int64_t kGroups = kColumnBlock / 4;
  const float* a = in.a + row * in.lda;
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    Float4 sum[kGroups] = {};
    for (int64_t p = begin; p < end; p += 4) {
#pragma GCC unroll 4
      for (int64_t group = 0; group < kGroups; ++group) {
        const Number* from = in.b + (j + 4 * group) * in.ldb + p;
        __builtin_prefetch(from + 2 * kColumnBlock * in.ldb);
        Float4 loaded[4], transposed[4];
#pragma GCC unroll 4
        for (int64_t r = 0; r < 4; ++r) {
          load_four(from + r * in.ldb, in.k - p, loaded[r]);
        }
        transpose_4x4(loaded, transposed);
#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; ++i) {
          sum[group] += a[p + i] * transposed[i];
        }
      }
    }
    for (int64_t group = 0; group < kGroups; ++group) {
      float* c = in.c + row * in.ldc + j + 4 * group;
      Float4 before{};
      if (begin > 0) {
        std::memcpy(&before, c, sizeof(before));
      }
      sum[group] += before;
      std::memcpy(c, &sum[group], sizeof(before));
    }
  }
}

template <typename Number>
void run_portable(const FewRowsArgs<Number>& in) {
  for (int64_t j = 0; j < in.n; j += kColumnBlock) {
    for (int64_t row = 0; row < in.m; ++row) {
      multiply_fours(in, row, j);
    }
  }
}

}  // namespace

const std::vector<FewRowsKernel>& few_rows_kernels() {
  static const std::vector<FewRowsKernel> kernels = [] {
    std::vector<FewRowsKernel> all;
#if defined(__x86_64__)
    if (has_avx512_transpose()) {
      all.push_back({8, run_avx512<float>, run_avx512<uint16_t>, /*uses_fma=*/true});
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      all.push_back({4, run_avx2<float>, run_avx2<uint16_t>, /*uses_fma=*/true});
    }
#endif
    all.push_back({2, run_portable<float>, run_portable<uint16_t>, /*uses_fma=*/false});
    return all;
  }();
  return kernels;
}

}  // namespace moe::kernels
