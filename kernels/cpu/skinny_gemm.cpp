// Dot products: a column of b lies along k, and so do the rows of a, so nothing is transposed. Some
// rows and columns at a time have their sums in registers, sixteen running sums each, which are
// joined last and in one order, whatever stands beside them.

#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kNumbersOfShare = int64_t{1} << 16;  // of b, worth a thread
constexpr int64_t kLanes = 16;
constexpr int kColumns = 4;

using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Eight [[gnu::vector_size(32)]] = float;
using Quarter [[gnu::vector_size(16)]] = float;

constexpr int64_t kStep = 2 * kLanes;  // numbers of a column at a time

// Half of kStep numbers of a column. Those of bf16 are halves of sixteen words, and widening the
// one or the other half takes one instruction: so half 0 are the even ones, half 1 the odd ones.
template <int kHalf>
[[gnu::always_inline]] inline void load_half(const float* from, Lanes& to) {
  std::memcpy(&to, from + kHalf * kLanes, sizeof(to));
}

template <int kHalf>
[[gnu::always_inline]] inline void load_half(const uint16_t* bf16, Lanes& to) {
  using Words [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;
  Words words;
  std::memcpy(&words, bf16, sizeof(words));
  const Words wide = kHalf == 0 ? words << 16 : words & 0xFFFF0000U;
  std::memcpy(&to, &wide, sizeof(to));
}

// Rows of a as products with such columns read them: [m, steps * kStep], zeros past k.
template <typename Number>
void lay_out_rows(const float* a, int64_t m, int64_t k, int64_t padded, float* to) {
  std::fill_n(to, m * padded, 0.0F);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const int64_t step = p / kStep * kStep, number = p % kStep;
      const int64_t lane = sizeof(Number) == 2 ? number / 2 + number % 2 * kLanes : number;
      to[i * padded + step + lane] = a[i * k + p];
    }
  }
}

[[gnu::always_inline]] inline void fold(const Lanes& sum, Quarter& to) {
  const Eight low = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7);
  const Eight high = __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15);
  const Eight both = low + high;
  to = __builtin_shufflevector(both, both, 0, 1, 2, 3) +
       __builtin_shufflevector(both, both, 4, 5, 6, 7);
}

// to[j] = all of sum[j] added up.
[[gnu::always_inline]] inline void join(const Lanes (&sum)[kColumns], Quarter& to) {
  Quarter q[kColumns];
#pragma GCC unroll 4
  for (int j = 0; j < kColumns; ++j) {
    fold(sum[j], q[j]);
  }
  const Quarter first = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) +
                        __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const Quarter second = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) +
                         __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  to = __builtin_shufflevector(first, second, 0, 1, 4, 5) +
       __builtin_shufflevector(first, second, 2, 3, 6, 7);
}

// All rows of a, laid out, with columns of b, of which there are a multiple of four.
template <typename Number>
struct DotRange {
  const float* a;  // rows `padded` numbers apart
  int64_t rows, k, padded;
  const Number* b;  // columns `stride` numbers apart
  int64_t stride, columns;
  float* c;
  int64_t c_row;
};

// Asks for numbers that are read some columns later. Processors foresee no pages, and those of a
// mapped file are small: without this a product of one row takes a quarter longer. What is past the
// end of the file is not read.
template <typename Number>
[[gnu::always_inline]] inline void fetch_ahead(const Number* from) {
  constexpr int64_t kBytes = 8192;  // two pages
  __builtin_prefetch(reinterpret_cast<const std::byte*>(from) + kBytes);
}

// Half a step of some rows with four columns.
template <typename Number, int kRows, int kHalf>
[[gnu::always_inline]] inline void add_half(const float* a, int64_t a_row, const Number* b,
                                            int64_t stride, Lanes (&sum)[kRows][kColumns]) {
  Lanes right[kColumns];
#pragma GCC unroll 4
  for (int column = 0; column < kColumns; ++column) {
    load_half<kHalf>(b + column * stride, right[column]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    Lanes left;
    std::memcpy(&left, a + i * a_row + kHalf * kLanes, sizeof(left));
#pragma GCC unroll 4
    for (int column = 0; column < kColumns; ++column) {
      sum[i][column] += left * right[column];
    }
  }
}

template <typename Number, int kRows, bool kFetches>
[[gnu::always_inline]] inline void add_step(const float* a, int64_t a_row, const Number* b,
                                            int64_t stride, Lanes (&sum)[kRows][kColumns]) {
#pragma GCC unroll 4
  for (int column = 0; kFetches && column < kColumns; ++column) {
    fetch_ahead(b + column * stride);
  }
  add_half<Number, kRows, 0>(a, a_row, b, stride, sum);
  add_half<Number, kRows, 1>(a, a_row, b, stride, sum);
}

// Rows `row` .. with columns j .. j + 3. Where one row is all, it fetches later columns.
template <typename Number, int kRows, bool kFetches>
[[gnu::always_inline]] inline void dots_of_rows(const DotRange<Number>& range, int64_t row,
                                                int64_t j) {
  Lanes sum[kRows][kColumns] = {};
  const float* a = range.a + row * range.padded;
  const Number* b = range.b + j * range.stride;
  const int64_t whole = range.k / kStep * kStep, left = range.k - whole;
  for (int64_t p = 0; p < whole; p += kStep) {
    add_step<Number, kRows, kFetches>(a + p, range.padded, b + p, range.stride, sum);
  }
  if (left > 0) {
    std::array<Number, kColumns * kStep> last{};  // with zeros behind the numbers
    for (int column = 0; column < kColumns; ++column) {
      std::copy_n(b + column * range.stride + whole, left, last.data() + column * kStep);
    }
    add_step<Number, kRows, false>(a + whole, range.padded, last.data(), kStep, sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    Quarter dots;
    join(sum[i], dots);
    std::memcpy(range.c + (row + i) * range.c_row + j, &dots, sizeof(dots));
  }
}

template <typename Number, int kRows>
[[gnu::always_inline]] inline void dots(const DotRange<Number>& range) {
  for (int64_t j = 0; j < range.columns; j += kColumns) {
    int64_t row = 0;
    if (range.rows == 1) {
      dots_of_rows<Number, 1, true>(range, row++, j);
    }
    for (; row + kRows <= range.rows; row += kRows) {
      dots_of_rows<Number, kRows, false>(range, row, j);
    }
    for (; row + 2 <= range.rows; row += 2) {
      dots_of_rows<Number, 2, false>(range, row, j);
    }
    for (; row < range.rows; ++row) {
      dots_of_rows<Number, 1, false>(range, row, j);
    }
  }
}

template <typename Number>
using Dots = void (*)(const DotRange<Number>& range);

#if defined(__x86_64__)
// Six rows have 24 sums, of 32 registers; one has as many halves as half of 16 hold.
template <typename Number>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void dots_avx512(const DotRange<Number>& range) {
  dots<Number, 6>(range);
}
template <typename Number>
[[gnu::target("avx2,fma")]] void dots_avx2(const DotRange<Number>& range) {
  dots<Number, 1>(range);
}
#endif
template <typename Number>
void dots_portable(const DotRange<Number>& range) {
  dots<Number, 1>(range);
}

template <typename Number>
Dots<Number> dots_of_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return dots_avx512<Number>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return dots_avx2<Number>;
  }
#endif
  return dots_portable<Number>;
}

// Rows of a in both orders, as far as the blocks of b ask for them.
struct LaidOutRows {
  const float *for_f32, *for_bf16;
  int64_t padded;
  const float* rows_for(const float*) const { return for_f32; }
  const float* rows_for(const uint16_t*) const { return for_bf16; }
};

// Columns begin..end-1 of a block, whose first is column 0 of c.
template <typename Number>
void columns_of(const GemmShape& shape, const LaidOutRows& a, const MatrixView& b, int64_t begin,
                int64_t end, float* c, int64_t c_row) {
  static const Dots<Number> run = dots_of_machine<Number>();
  const auto* columns = static_cast<const Number*>(b.data);
  const float* rows = a.rows_for(columns);
  const int64_t whole = std::max(end - begin, int64_t{0}) / kColumns * kColumns;
  if (whole > 0) {
    run({rows, shape.m, shape.k, a.padded, columns + begin * b.column, b.column, whole, c + begin,
         c_row});
  }
  // The last ones one by one, each four times over: in the same order of sums.
  std::array<float, kColumns * kMostSkinnyRows> last;
  for (int64_t j = begin + whole; j < end; ++j) {
    run({rows, shape.m, shape.k, a.padded, columns + j * b.column, /*stride=*/0, kColumns,
         last.data(), kColumns});
    for (int64_t i = 0; i < shape.m; ++i) {
      c[i * c_row + j] = last[static_cast<size_t>(i * kColumns)];
    }
  }
}

// The same of f16, widened some columns at a time.
void columns_of_f16(const GemmShape& shape, const LaidOutRows& a, const MatrixView& b,
                    int64_t begin, int64_t end, float* c, int64_t c_row) {
  static thread_local Scratch scratch;
  float* wide = scratch.floats(kColumns * shape.k);
  for (int64_t j = begin; j < end; j += kColumns) {
    const int64_t columns = std::min<int64_t>(kColumns, end - j);
    for (int64_t r = 0; r < columns; ++r) {
      f16_to_f32(static_cast<const uint16_t*>(b.from(0, j + r).data), shape.k, wide + r * shape.k);
    }
    columns_of<float>(shape, a, {wide, 1, shape.k}, 0, columns, c + j, c_row);
  }
}

// Into `buffer`, of 2 m padded floats.
LaidOutRows laid_out(const GemmShape& shape, const float* a, ColumnBlocks b, int64_t padded,
                     float* buffer) {
  const auto is_bf16 = [](const ColumnBlock& block) { return block.b.dtype == Dtype::kBF16; };
  float* for_bf16 = buffer + shape.m * padded;
  if (!std::all_of(b.begin(), b.end(), is_bf16)) {
    lay_out_rows<float>(a, shape.m, shape.k, padded, buffer);
  }
  if (std::any_of(b.begin(), b.end(), is_bf16)) {
    lay_out_rows<uint16_t>(a, shape.m, shape.k, padded, for_bf16);
  }
  return {buffer, for_bf16, padded};
}

}  // namespace

void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row) {
  const int64_t grain = (kNumbersOfShare / std::max<int64_t>(1, shape.k) + kColumns) / kColumns;
  const int64_t shares = (shape.n + kColumns - 1) / kColumns;
  static thread_local Scratch scratch;
  const int64_t padded = (shape.k + kStep - 1) / kStep * kStep;
  const LaidOutRows rows = laid_out(shape, a, b, padded, scratch.floats(2 * shape.m * padded));
  at::parallel_for(0, shares, grain, [&](int64_t first_share, int64_t last_share) {
    const int64_t begin = first_share * kColumns, end = std::min(shape.n, last_share * kColumns);
    int64_t first = 0;  // column of the block
    for (const ColumnBlock& block : b) {
      const auto columns = block.b.dtype == Dtype::kF16    ? columns_of_f16
                           : block.b.dtype == Dtype::kBF16 ? columns_of<uint16_t>
                                                           : columns_of<float>;
      columns(shape, rows, block.b, std::clamp<int64_t>(begin - first, 0, block.columns),
              std::clamp<int64_t>(end - first, 0, block.columns), c + first, c_row);
      first += block.columns;
    }
  });
}

bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b) {
  return shape.m <= kMostSkinnyRows && b.dtype != Dtype::kF32RoundedToBF16 && b.row == 1;
}

}  // namespace moe::kernels
