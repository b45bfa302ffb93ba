#pragma once
// C = A B and C += A B in f32 on the CPU, of matrices with any strides.
//
// LibTorch's library reaches 80 to 88 % of the multiply-adds that a core can do at the shapes of
// small experts, and has no form for the strided pieces that attention multiplies. Here the inner
// loop is one tile of C that stays in registers (kernels/cpu/gemm_tile.h), which reads A where it
// is stored; only a B whose columns are contiguous is transposed first, a block at a time.
//
// Every element is the sum over k in one order, in blocks of kGemmDepth: the same for any number of
// threads, and for any other rows and columns beside it.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace moe::kernels {

inline constexpr int64_t kGemmDepth = 256;
inline constexpr int64_t kGemmColumns = 512;  // of a block of B that is packed at a time

// The dtype of a matrix in memory, and how a product reads it.
enum class Dtype {
  kF32,
  kF32RoundedToBF16,  // f32, each number rounded to bf16 before it is multiplied
  kBF16,              // the bits of bf16
  kF16,               // the bits of IEEE half precision
};

// Element (i, j) is number i * row + j * column from `data` on.
struct MatrixView {
  const void* data;
  int64_t row, column;
  Dtype dtype = Dtype::kF32;

  MatrixView transposed() const { return {data, column, row, dtype}; }
  MatrixView from(int64_t i, int64_t j) const {
    const int64_t bytes = is_16_bit() ? 2 : 4;
    return {static_cast<const std::byte*>(data) + (i * row + j * column) * bytes, row, column,
            dtype};
  }
  bool is_16_bit() const { return dtype == Dtype::kBF16 || dtype == Dtype::kF16; }
  bool is_bf16() const { return dtype == Dtype::kBF16 || dtype == Dtype::kF32RoundedToBF16; }
  const float* floats() const { return static_cast<const float*>(data); }
  float at(int64_t i, int64_t j) const;
};

struct GemmShape {
  int64_t m, n, k;
};

// Some columns of a B whose parts lie apart; together they make one B of all their columns.
struct ColumnBlock {
  MatrixView b;  // [k, columns]
  int64_t columns;
};
using ColumnBlocks = std::span<const ColumnBlock>;

// c [m, n], whose rows lie c_row floats apart, = a [m, k] b [k, n]; added to what is there where
// `accumulate`. In this thread alone.
void gemm_one_thread(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                     int64_t c_row, bool accumulate);

// The same in pieces that nobody keeps: take(first, rows, c) gets rows first .. first + rows - 1 of
// the product, c [rows, n], as soon as their sums are whole and while they lie in the cache. n at
// most kGemmColumns, k > 0; the columns of b lie in blocks of one dtype. `take` makes no products.
using TakeRows = std::function<void(int64_t first, int64_t rows, float* c)>;
void gemm_row_blocks(const GemmShape& shape, const MatrixView& a, ColumnBlocks b,
                     const TakeRows& take);

// The same by all threads of LibTorch's pool.
void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c, int64_t c_row,
          bool accumulate);
// The same of a B whose n columns lie in blocks, left to right: the same bits as if they were one
// matrix, in one sharing out among the threads.
void gemm(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, float* c, int64_t c_row,
          bool accumulate);

// The same to c of bf16, rounded once from the whole sum; what was there goes.
void gemm_to_bf16(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, uint16_t* c,
                  int64_t c_row);

// How gemm() reads an f32, bf16 or f16 tensor on the CPU as an operand in `type` (f32 or bf16; a
// bf16 tensor is read as it is in both, one of f16 in f32 alone).
MatrixView view_of(const at::Tensor& matrix, at::ScalarType type);
// Whether gemm() is worth it for a product of this size; smaller ones are LibTorch's.
bool serves_gemm(const GemmShape& shape);

// left [M, K] right [K, N] -> [M, N] in their type: by gemm() where it serves, else by LibTorch.
at::Tensor product(const at::Tensor& left, const at::Tensor& right);
// The same into `out` [M, N], whose rows are contiguous; added to it where `accumulate`.
void product_out(at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                 bool accumulate = false);

}  // namespace moe::kernels
