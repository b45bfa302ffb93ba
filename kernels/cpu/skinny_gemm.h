#pragma once
// Products of few rows with a matrix of bf16, on the CPU: tokens that are written one at a time,
// against weights that lie in memory as they are stored. Such a product is as fast as its matrix is
// read, which is once, in order.

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

// c [m, n], whose rows lie c_row floats apart, = a [m, k] b [k, n]. a f32 with rows of k numbers;
// b bf16, and its columns are contiguous (b.row is 1). Each element is one sum in f32, in an order
// that the instruction set decides, and not gemm()'s.
void thin_product(const GemmShape& shape, const float* a, const MatrixView& b, float* c,
                  int64_t c_row);

// Whether it serves: fewer rows than a tile of gemm() has, and such a matrix.
bool serves_thin_product(const GemmShape& shape, const MatrixView& b);

}  // namespace moe::kernels
