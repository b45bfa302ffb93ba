#pragma once
// C = A B, or C += A B, as plain loops whose sums are in double.

#include "kernels/cpu/gemm.h"

namespace moe::test {

using kernels::GemmShape;
using kernels::MatrixView;

inline void gemm_reference(const GemmShape& shape, const MatrixView& a, const MatrixView& b,
                           float* c, int64_t c_row, bool accumulate) {
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double sum = accumulate ? c[i * c_row + j] : 0.0;
      for (int64_t p = 0; p < shape.k; ++p) {
        sum += double{a.at(i, p)} * double{b.at(p, j)};
      }
      c[i * c_row + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace moe::test
