#include "kernels/cpu/skinny_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kNumbersOfShare = int64_t{1} << 16;  // of b, worth a thread

MOE_VECTOR_CLONES float dot(const float* a, const uint16_t* b, int64_t k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t p = 0; p < k; ++p) {
    sum += a[p] * widen(b[p]);
  }
  return sum;
}

}  // namespace

void skinny_gemm(const GemmShape& shape, const float* a, const MatrixView& b, float* c,
                 int64_t c_row) {
  const auto [m, n, k] = shape;
  const int64_t grain = kNumbersOfShare / std::max<int64_t>(1, k) + 1;
  at::parallel_for(0, n, grain, [&, m = m, k = k](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const auto* column = static_cast<const uint16_t*>(b.from(0, j).data);
      for (int64_t i = 0; i < m; ++i) {
        c[i * c_row + j] = dot(a + i * k, column, k);
      }
    }
  });
}

bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b) {
  return shape.m < kTileRows && b.dtype == Dtype::kBF16 && b.row == 1;
}

}  // namespace moe::kernels
