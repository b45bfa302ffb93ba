// A product of few rows reads sixteen columns of b side by side, as they lie, and transposes them
// in registers, so that a vector holds one number of each and a sum runs along k in gemm()'s order.
// With more rows multiplying takes longer than packing or transposing, and the product is
// kernels/cpu/row_lanes.h's or gemm()'s, in the same order of sums.

#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/read_ahead.h"
#include "kernels/cpu/row_lanes.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/transpose_words.h"

namespace moe::kernels {

namespace {

constexpr int64_t kNumbersOfShare = int64_t{1} << 16;  // of b, worth a thread
constexpr int64_t kColumns = 16;                       // of b that are read side by side
constexpr int64_t kStep = 32;                          // numbers of a column at a time, at most
static_assert(kGemmDepth % kStep == 0);

// Rows of a with columns of b, a multiple of kColumns of them.
template <typename Number>
struct FewRows {
  const float* a;  // `padded` numbers apart, zeros behind k
  int64_t rows, k, padded;
  const Number* b;  // columns `stride` numbers apart
  int64_t stride, columns;
  float* c;
  int64_t c_row;
};

// What makes such a product of 1 .. `rows` rows.
struct FewRowsKernel {
  int64_t rows;
  void (*of_f32)(const FewRows<float>& in);
  void (*of_bf16)(const FewRows<uint16_t>& in);
};

#if defined(__x86_64__)
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

// Numbers that are read later, in the order of memory: those of the next sixteen columns into the
// first cache, if it has room for them, others into the second.
template <typename Number>
struct LinesAhead {
  const Number *soon, *later;
};

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
  const Number* next = b + kColumns * in.stride;
  LinesAhead<Number> ahead{next,
                           kSoon ? b + kBytesAhead / static_cast<int64_t>(sizeof(Number)) : next};
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
  const bool is_soon = kColumns * in.stride * static_cast<int64_t>(sizeof(Number)) <= kBytesSoon;
  const auto multiply =
      is_soon ? multiply_sixteen<Number, kRows, true> : multiply_sixteen<Number, kRows, false>;
  for (int64_t j = 0; j < in.columns; j += kColumns) {
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
#endif

using Four [[gnu::vector_size(16)]] = float;

// Numbers of a column, zeros past the first `count`.
[[gnu::always_inline]] inline void load_four(const float* from, int64_t count, Four& to) {
  if (count >= 4) {
    std::memcpy(&to, from, sizeof(to));
    return;
  }
  to = Four{};
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}
[[gnu::always_inline]] inline void load_four(const uint16_t* bf16, int64_t count, Four& to) {
  using Words [[gnu::vector_size(16)]] = uint32_t;
  Words words{};
  for (int64_t i = 0; i < 4; ++i) {
    words[i] = i < count ? uint32_t{bf16[i]} << 16 : 0;
  }
  std::memcpy(&to, &words, sizeof(to));
}

// to[p] = the number p of every column.
[[gnu::always_inline]] inline void transpose_four_by_four(const Four (&in)[4], Four (&to)[4]) {
  const Four low = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Four low2 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Four high = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Four high2 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  to[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
  to[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
  to[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
  to[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}

// Row `row` with columns j .. j + 15, four of which are transposed at once: of any processor.
template <typename Number>
[[gnu::always_inline]] inline void multiply_fours(const FewRows<Number>& in, int64_t row,
                                                  int64_t j) {
  constexpr int64_t kGroups = kColumns / 4;
  const float* a = in.a + row * in.padded;
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    Four sum[kGroups] = {};
    for (int64_t p = begin; p < end; p += 4) {
#pragma GCC unroll 4
      for (int64_t group = 0; group < kGroups; ++group) {
        const Number* from = in.b + (j + 4 * group) * in.stride + p;
        __builtin_prefetch(from + 2 * kColumns * in.stride);
        Four lying[4], transposed[4];
#pragma GCC unroll 4
        for (int64_t r = 0; r < 4; ++r) {
          load_four(from + r * in.stride, in.k - p, lying[r]);
        }
        transpose_four_by_four(lying, transposed);
#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; ++i) {
          sum[group] += a[p + i] * transposed[i];
        }
      }
    }
    for (int64_t group = 0; group < kGroups; ++group) {
      float* c = in.c + row * in.c_row + j + 4 * group;
      Four before{};
      if (begin > 0) {
        std::memcpy(&before, c, sizeof(before));
      }
      sum[group] += before;
      std::memcpy(c, &sum[group], sizeof(before));
    }
  }
}

template <typename Number>
[[gnu::always_inline]] inline void multiply_rows_by_fours(const FewRows<Number>& in) {
  for (int64_t j = 0; j < in.columns; j += kColumns) {
    for (int64_t row = 0; row < in.rows; ++row) {
      multiply_fours(in, row, j);
    }
  }
}

template <typename Number>
void run_portable(const FewRows<Number>& in) {
  multiply_rows_by_fours(in);
}

#if defined(__x86_64__)
template <typename Number>
[[gnu::target("avx2,fma")]] void run_avx2(const FewRows<Number>& in) {
  multiply_rows_by_fours(in);
}
#endif

// Those that this machine can run, the fastest first.
const std::vector<FewRowsKernel>& few_rows_kernels() {
  static const std::vector<FewRowsKernel> kernels = [] {
    std::vector<FewRowsKernel> all;
#if defined(__x86_64__)
    if (transposes_sixteen_columns()) {
      all.push_back({8, run_avx512<float>, run_avx512<uint16_t>});
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      all.push_back({2, run_avx2<float>, run_avx2<uint16_t>});
    }
#endif
    all.push_back({2, run_portable<float>, run_portable<uint16_t>});
    return all;
  }();
  return kernels;
}

void run(const FewRowsKernel& kernel, const FewRows<float>& in) { kernel.of_f32(in); }
void run(const FewRowsKernel& kernel, const FewRows<uint16_t>& in) { kernel.of_bf16(in); }

// A row's numbers with zeros behind them up to whole steps, where they lie if there are none.
struct PaddedRows {
  const float* data;
  int64_t padded;
};

PaddedRows padded_rows(const GemmShape& shape, const float* a, Scratch& scratch) {
  const int64_t padded = (shape.k + kStep - 1) / kStep * kStep;
  if (padded == shape.k) {
    return {a, padded};
  }
  float* to = scratch.floats(shape.m * padded);
  for (int64_t i = 0; i < shape.m; ++i) {
    std::copy_n(a + i * shape.k, shape.k, to + i * padded);
    std::fill_n(to + i * padded + shape.k, padded - shape.k, 0.0F);
  }
  return {to, padded};
}

// Columns begin .. end - 1 of a block, whose first is column 0 of c.
template <typename Number>
void columns_of(const FewRowsKernel& kernel, const GemmShape& shape, const PaddedRows& a,
                const MatrixView& b, int64_t begin, int64_t end, float* c, int64_t c_row) {
  const auto* columns = static_cast<const Number*>(b.data);
  const int64_t whole = std::max(end - begin, int64_t{0}) / kColumns * kColumns;
  if (whole > 0) {
    run(kernel, FewRows<Number>{a.data, shape.m, shape.k, a.padded, columns + begin * b.column,
                                b.column, whole, c + begin, c_row});
  }
  const int64_t left = end - begin - whole;
  if (left <= 0) {
    return;
  }
  static thread_local Scratch scratch;  // the last columns, with zeros beside them
  auto* last = reinterpret_cast<Number*>(scratch.floats(kColumns * shape.k));
  std::fill_n(last, kColumns * shape.k, Number{});
  for (int64_t j = 0; j < left; ++j) {
    std::copy_n(columns + (begin + whole + j) * b.column, shape.k, last + j * shape.k);
  }
  std::array<float, kColumns * kMostSkinnyRows> sums;
  run(kernel, FewRows<Number>{a.data, shape.m, shape.k, a.padded, last, shape.k, kColumns,
                              sums.data(), kColumns});
  for (int64_t i = 0; i < shape.m; ++i) {
    std::copy_n(sums.data() + i * kColumns, left, c + i * c_row + begin + whole);
  }
}

// The same of f16, widened some columns at a time.
void columns_of_f16(const FewRowsKernel& kernel, const GemmShape& shape, const PaddedRows& a,
                    const MatrixView& b, int64_t begin, int64_t end, float* c, int64_t c_row) {
  static thread_local Scratch scratch;
  float* wide = scratch.floats(kColumns * shape.k);
  for (int64_t j = begin; j < end; j += kColumns) {
    const int64_t columns = std::min<int64_t>(kColumns, end - j);
    for (int64_t r = 0; r < columns; ++r) {
      f16_to_f32(static_cast<const uint16_t*>(b.from(0, j + r).data), shape.k, wide + r * shape.k);
    }
    columns_of<float>(kernel, shape, a, {wide, 1, shape.k}, 0, columns, c + j, c_row);
  }
}

void multiply_few_rows(const FewRowsKernel& kernel, const GemmShape& shape, const float* a,
                       ColumnBlocks b, float* c, int64_t c_row) {
  const int64_t grain = (kNumbersOfShare / shape.k + kColumns) / kColumns;
  const int64_t shares = (shape.n + kColumns - 1) / kColumns;
  static thread_local Scratch scratch;
  const PaddedRows rows = padded_rows(shape, a, scratch);
  at::parallel_for(0, shares, grain, [&](int64_t first_share, int64_t last_share) {
    const int64_t begin = first_share * kColumns, end = std::min(shape.n, last_share * kColumns);
    int64_t first = 0;  // column of the block
    for (const ColumnBlock& block : b) {
      const auto columns = block.b.dtype == Dtype::kF16    ? columns_of_f16
                           : block.b.dtype == Dtype::kBF16 ? columns_of<uint16_t>
                                                           : columns_of<float>;
      columns(kernel, shape, rows, block.b, std::clamp<int64_t>(begin - first, 0, block.columns),
              std::clamp<int64_t>(end - first, 0, block.columns), c + first, c_row);
      first += block.columns;
    }
  });
}

}  // namespace

int64_t skinny_kernels() { return static_cast<int64_t>(few_rows_kernels().size()); }

void skinny_gemm_with(int64_t number, const GemmShape& shape, const float* a, ColumnBlocks b,
                      float* c, int64_t c_row) {
  const FewRowsKernel& kernel = few_rows_kernels().at(static_cast<size_t>(number));
  if (shape.m == 0 || shape.n == 0) {
    return;
  }
  if (shape.m > kernel.rows && number == 0 && serves_row_lanes(shape, b)) {
    row_lanes_gemm(shape, a, b, c, c_row);
    return;
  }
  if (shape.m > kernel.rows || shape.k == 0) {
    gemm(shape, {a, shape.k, 1}, b, c, c_row, /*accumulate=*/false);
    return;
  }
  multiply_few_rows(kernel, shape, a, b, c, c_row);
}

void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row) {
  skinny_gemm_with(0, shape, a, b, c, c_row);
}

bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b) {
  return shape.m <= kMostSkinnyRows && b.dtype != Dtype::kF32RoundedToBF16 && b.row == 1;
}

}  // namespace moe::kernels
