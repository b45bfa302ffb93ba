// Shares out columns among threads. With more than a few rows multiplying takes longer than
// packing, and the product is gemm()'s, in the same order of sums.

#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/scratch.h"

namespace moe::kernels {

namespace {

constexpr int64_t kNumbersOfShare = int64_t{1} << 16;  // of b, worth a thread
constexpr int64_t kColumns = kColumnsOfFewRows;

void run(const FewRowsKernel& kernel, const FewRows<float>& in) { kernel.of_f32(in); }
void run(const FewRowsKernel& kernel, const FewRows<uint16_t>& in) { kernel.of_bf16(in); }

// A row's numbers with zeros behind them up to whole steps, where they lie if there are none.
struct PaddedRows {
  const float* data;
  int64_t padded;
};

PaddedRows padded_rows(const GemmShape& shape, const float* a, Scratch& scratch) {
  const int64_t padded = (shape.k + kStepOfFewRows - 1) / kStepOfFewRows * kStepOfFewRows;
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

void skinny_gemm_with(int64_t number, const GemmShape& shape, const float* a, ColumnBlocks b,
                      float* c, int64_t c_row) {
  const FewRowsKernel& kernel = few_rows_kernels().at(static_cast<size_t>(number));
  if (shape.m == 0 || shape.n == 0) {
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
