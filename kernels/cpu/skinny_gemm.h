#pragma once
// Skinny GEMM on the CPU: products of a few rows with a matrix of 16 bits, as generation makes
// them, where tokens come one at a time and weights stay in memory as the folder stores them. Such
// a product is bound by reading its matrix, which happens once and in order.

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

// c [m, n], whose rows are c_row floats apart, = a [m, k] b [k, n]. a f32 with rows of k numbers;
// b bf16 or f16 in blocks of columns, which are contiguous (b.row is 1). Each element is one sum in
// f32, in an order that the instruction set decides; it is not gemm()'s order.
void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row);

// Whether skinny_gemm() takes the product: fewer rows than a tile of gemm() has, and such a matrix.
bool serves_skinny_gemm(const GemmShape& shape, const MatrixView& b);

}  // namespace moe::kernels
