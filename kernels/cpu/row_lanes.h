#pragma once
// Products of some rows, up to 48, with a matrix that lies as the folder stores it, where AVX-512
// is: rows lie in the lanes of vectors and meet one number of a column at a time, so that the
// matrix is packed nowhere. gemm() would pack it for rows that are too few to make up for that, an
// eighth of its time at 48.

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

inline constexpr int64_t kRowsOfLanes = 48;

// Whether that is faster than gemm(): few lanes stay empty, b is f32 or bf16 with contiguous
// columns.
bool serves_row_lanes(const GemmShape& shape, ColumnBlocks b);

// c [m, n], whose rows lie c_row floats apart, = a [m, k] b [k, n], k > 0; each sum in gemm()'s
// order.
void row_lanes_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c,
                    int64_t c_row);

}  // namespace moe::kernels
