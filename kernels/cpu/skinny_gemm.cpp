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

struct PaddedRows {
  const float* data;
  int64_t stride;
};

// Returns the rows of A, zero-padded to a multiple of kDepthBlock; in place if k is a multiple.
PaddedRows pad_depth(const GemmShape& shape, const float* a, Scratch& scratch) {
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
  const int64_t left = (end - begin) % kColumnBlock, whole = end - begin - left;
  if (whole > 0) {
    run(kernel, FewRowsArgs<Number>{a.data, shape.m, shape.k, a.stride, columns + begin * b.column,
                                    b.column, whole, c + begin, c_row});
  }
  if (left == 0) {
    return;
  }
  static thread_local Scratch scratch;  // the last columns, padded with zero columns
  auto* last = reinterpret_cast<Number*>(scratch.floats(kColumnBlock * shape.k));
  std::fill_n(last, kColumnBlock * shape.k, Number{});
  for (int64_t j = 0; j < left; ++j) {
    std::copy_n(columns + (begin + whole + j) * b.column, shape.k, last + j * shape.k);
  }
  std::array<float, kColumnBlock * kMaxSkinnyRows> sums;
  run(kernel, FewRowsArgs<Number>{a.data, shape.m, shape.k, a.stride, last, shape.k, kColumnBlock,
                                  sums.data(), kColumnBlock});
  for (int64_t i = 0; i < shape.m; ++i) {
    std::copy_n(sums.data() + i * kColumnBlock, left, c + i * c_row + begin + whole);
  }
}

// multiply_skinny_columns() for f16, which is widened kColumnBlock columns at a time.
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
  static thread_local Scratch scratch;
  const PaddedRows rows = pad_depth(shape, a, scratch);
  const int64_t grain = (kThreadElements / shape.k + kColumnBlock) / kColumnBlock;
  const int64_t strips = (shape.n + kColumnBlock - 1) / kColumnBlock;
  at::parallel_for(0, strips, grain, [&](int64_t first_strip, int64_t last_strip) {
    int64_t begin = first_strip * kColumnBlock, end = std::min(shape.n, last_strip * kColumnBlock);
    float* block_c = c;
    for (const auto& [matrix, columns] : b) {  // begin, end: relative to this block
      const auto multiply = matrix.dtype == at::kHalf       ? multiply_f16_columns
                            : matrix.dtype == at::kBFloat16 ? multiply_skinny_columns<uint16_t>
                                                            : multiply_skinny_columns<float>;
      multiply(few_rows, shape, rows, matrix, std::clamp<int64_t>(begin, 0, columns),
               std::clamp<int64_t>(end, 0, columns), block_c, c_row);
      begin -= columns;
      end -= columns;
      block_c += columns;
    }
  });
}

}  // namespace moe::kernels
