#pragma once
// Skinny GEMM on the CPU: products of few rows with a matrix that lies as the folder stores it, as
// generation makes them, where every sequence of a batch gets a token at a time. With one row such
// a product is bound by reading its matrix, which happens once and in order; with some it is bound
// by multiplying.

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

inline constexpr int64_t kMostSkinnyRows = 48;

// c [m, n], whose rows are c_row floats apart, = a [m, k] b [k, n]. a f32 with rows of k numbers;
// b f32, bf16 or f16 in blocks of columns, which are contiguous (b.row is 1). Each element is one
// sum in f32 in gemm()'s order, which is the same for any number of threads and for any rows and
// columns beside it: what a sequence gets does not depend on its batch.
void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row);

// Whether skinny_gemm() takes the product: at most kMostSkinnyRows rows, and such a matrix.
bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b);

// The same by one of the kernels for few rows (few_rows_kernels() in kernels/cpu/few_rows.h), of
// which skinny_gemm() takes number 0.
void skinny_gemm_with(int64_t number, const GemmShape& shape, const float* a, ColumnBlocks b,
                      float* c, int64_t c_row);

}  // namespace moe::kernels
