#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kNumbersOfShare = int64_t{1} << 16;  // of b, worth a thread

MOE_VECTOR_CLONES float dot_bf16(const float* a, const uint16_t* b, int64_t k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t p = 0; p < k; ++p) {
    sum += a[p] * widen(b[p]);
  }
  return sum;
}

MOE_VECTOR_CLONES float dot_f16(const float* a, const uint16_t* b, int64_t k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t p = 0; p < k; ++p) {
    sum += a[p] * widen_f16(b[p]);
  }
  return sum;
}

// Asks for the numbers of a column that comes later. Processors foresee no pages, and those of a
// mapped file are small: without this a product takes a quarter longer. What is past the end of the
// file is not read.
void fetch_ahead(const uint16_t* column, int64_t k) {
  constexpr int64_t kBytes = 8192;  // two pages
  const auto* from = reinterpret_cast<const std::byte*>(column) + kBytes;
  for (int64_t at = 0; at < 2 * k; at += 64) {
    __builtin_prefetch(from + at);
  }
}

// Columns begin..end-1 of a block, whose first is column 0 of c.
void columns_of(const GemmShape& shape, const float* a, const MatrixView& b, int64_t begin,
                int64_t end, float* c, int64_t c_row) {
  const auto dot_of = b.dtype == Dtype::kF16 ? dot_f16 : dot_bf16;
  for (int64_t j = begin; j < end; ++j) {
    const auto* column = static_cast<const uint16_t*>(b.from(0, j).data);
    fetch_ahead(column, shape.k);
    for (int64_t i = 0; i < shape.m; ++i) {
      c[i * c_row + j] = dot_of(a + i * shape.k, column, shape.k);
    }
  }
}

}  // namespace

void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row) {
  const int64_t grain = kNumbersOfShare / std::max<int64_t>(1, shape.k) + 1;
  at::parallel_for(0, shape.n, grain, [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // column of the block
    for (const ColumnBlock& block : b) {
      columns_of(shape, a, block.b, std::clamp<int64_t>(begin - first, 0, block.columns),
                 std::clamp<int64_t>(end - first, 0, block.columns), c + first, c_row);
      first += block.columns;
    }
  });
}

bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b) {
  return shape.m < kTileRows && b.is_16_bit() && b.row == 1;
}

}  // namespace moe::kernels
