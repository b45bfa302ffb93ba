#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kThreadElements = int64_t{1} << 16;  // minimum elements of b per thread

void run(const FewRowsKernel& kernel, const FewRowsArgs<float>& in) { kernel.f32(in); }
void run(const FewRowsKernel& kernel, const FewRowsArgs<uint16_t>& in) { kernel.bf16(in); }

// Rows of A, padded with zeros to a multiple of kDepthBlock; in place if they are.
struct PaddedRows {
  const float* data;
  int64_t padded;
};

PaddedRows padded_rows(const GemmShape& shape, const float* a, Scratch& scratch) {
  const int64_t padded = (shape.k + kDepthBlock - 1) / kDepthBlock * kDepthBlock;
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

// Computes columns begin .. end - 1 of a block, whose column 0 is column 0 of c.
template <typename Number>
void multiply_skinny_columns(const FewRowsKernel& kernel, const GemmShape& shape,
                             const PaddedRows& a, const MatrixView& b, int64_t begin, int64_t end,
                             float* c, int64_t c_row) {
  const auto* columns = static_cast<const Number*>(b.data);
  const int64_t whole = std::max(end - begin, int64_t{0}) / kColumnBlock * kColumnBlock;
  if (whole > 0) {
    run(kernel, FewRowsArgs<Number>{a.data, shape.m, shape.k, a.padded, columns + begin * b.column,
                                    b.column, whole, c + begin, c_row});
  }
  const int64_t left = end - begin - whole;
  if (left <= 0) {
    return;
  }
  static thread_local Scratch scratch;  // the last columns, padded with zero columns
  auto* last = reinterpret_cast<Number*>(scratch.floats(kColumnBlock * shape.k));
  std::fill_n(last, kColumnBlock * shape.k, Number{});
  for (int64_t j = 0; j < left; ++j) {
    std::copy_n(columns + (begin + whole + j) * b.column, shape.k, last + j * shape.k);
  }
  std::array<float, kColumnBlock * kMaxSkinnyRows> sums;
  run(kernel, FewRowsArgs<Number>{a.data, shape.m, shape.k, a.padded, last, shape.k, kColumnBlock,
                                  sums.data(), kColumnBlock});
  for (int64_t i = 0; i < shape.m; ++i) {
    std::copy_n(sums.data() + i * kColumnBlock, left, c + i * c_row + begin + whole);
  }
}

// Overload for f16, which is widened kColumnBlock columns at a time.
void multiply_f16_columns(const FewRowsKernel& kernel, const GemmShape& shape, const PaddedRows& a,
                          const MatrixView& b, int64_t begin, int64_t end, float* c,
                          int64_t c_row) {
  static thread_local Scratch scratch;
  float* wide = scratch.floats(kColumnBlock * shape.k);
  for (int64_t j = begin; j < end; j += kColumnBlock) {
    const int64_t columns = std::min<int64_t>(kColumnBlock, end - j);
    for (int64_t r = 0; r < columns; ++r) {
      f16_to_f32(static_cast<const uint16_t*>(b.from(0, j + r).data), shape.k, wide + r * shape.k);
    }
    multiply_skinny_columns<float>(kernel, shape, a, {wide, 1, shape.k}, 0, columns, c + j, c_row);
  }
}

void multiply_few_rows(const FewRowsKernel& kernel, const GemmShape& shape, const float* a,
                       ColumnBlocks b, float* c, int64_t c_row) {
  const int64_t grain = (kThreadElements / shape.k + kColumnBlock) / kColumnBlock;
  const int64_t shares = (shape.n + kColumnBlock - 1) / kColumnBlock;
  static thread_local Scratch scratch;
  const PaddedRows rows = padded_rows(shape, a, scratch);
  at::parallel_for(0, shares, grain, [&](int64_t first_share, int64_t last_share) {
    const int64_t begin = first_share * kColumnBlock,
                  end = std::min(shape.n, last_share * kColumnBlock);
    int64_t first = 0;  // first column of the block
    for (const ColumnBlock& block : b) {
      const auto columns = block.b.dtype == at::kHalf       ? multiply_f16_columns
                           : block.b.dtype == at::kBFloat16 ? multiply_skinny_columns<uint16_t>
                                                            : multiply_skinny_columns<float>;
      columns(kernel, shape, rows, block.b, std::clamp<int64_t>(begin - first, 0, block.columns),
              std::clamp<int64_t>(end - first, 0, block.columns), c + first, c_row);
      first += block.columns;
    }
  });
}

}  // namespace

void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row,
                 size_t kernel) {
  const FewRowsKernel& few_rows = few_rows_kernels().at(kernel);
  if (shape.m == 0 || shape.n == 0) {
    return;
  }
  if (shape.m > few_rows.max_rows || shape.k == 0) {
    gemm(shape, {a, shape.k, 1}, b, c, c_row, /*accumulate=*/false);
    return;
  }
  multiply_few_rows(few_rows, shape, a, b, c, c_row);
}

bool can_use_skinny_gemm(const GemmShape& shape, const MatrixView& b) {
  return shape.m <= kMaxSkinnyRows && !b.rounds_to_bf16 && b.row == 1;
}

}  // namespace moe::kernels
