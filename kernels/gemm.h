#pragma once
// C = A B and C += A B in f32 on the CPU, from rows or columns wherever they lie.
//
// The library's products reach 80 to 88 % of the multiply-adds that a core can do at the shapes of
// small experts, and have no form for the strided pieces that attention multiplies. Here the inner
// loop is one tile of C that stays in registers (kernels/gemm_tile.h), which takes A as it lies;
// only a B that is read along k is turned first, a block at a time.
//
// Every element is the sum over k in one order, in blocks of kGemmDepth: the same for any number of
// threads, and for any other rows and columns beside it.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moe::kernels {

inline constexpr int64_t kGemmDepth = 256;

// Element (i, j) is data[i * row + j * column].
struct MatrixView {
  const float* data;
  int64_t row, column;

  MatrixView transposed() const { return {data, column, row}; }
  MatrixView from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

struct GemmShape {
  int64_t m, n, k;
};

// c [m, n], whose rows lie c_row floats apart, = a [m, k] b [k, n]; added to what is there where
// `accumulate`. In this thread alone.
void gemm_one_thread(const GemmShape& shape,
                     const MatrixView& a,
                     const MatrixView& b,
                     float* c,
                     int64_t c_row,
                     bool accumulate);

// The same by all threads of LibTorch's pool.
void gemm(const GemmShape& shape,
          const MatrixView& a,
          const MatrixView& b,
          float* c,
          int64_t c_row,
          bool accumulate);

// The reference: plain loops, sums in double.
void gemm_reference(const GemmShape& shape,
                    const MatrixView& a,
                    const MatrixView& b,
                    float* c,
                    int64_t c_row,
                    bool accumulate);

// left [M, K] right [K, N] -> [M, N] in their type: by gemm() where it serves, else by LibTorch.
at::Tensor product(const at::Tensor& left, const at::Tensor& right);
// The same into `out` [M, N], whose rows are contiguous; added to it where `accumulate`.
void product_out(at::Tensor& out,
                 const at::Tensor& left,
                 const at::Tensor& right,
                 bool accumulate = false);

}  // namespace moe::kernels
