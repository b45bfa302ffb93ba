#pragma once
// GEMM on the CPU, C = A B and C += A B, summed in f32, for matrices with any strides.
//
// LibTorch's matrix library reaches 80 to 88 % of the peak of a core at the shapes of small experts
// and does not support the strided blocks of attention. The inner loop here computes one tile of C
// in registers (kernels/cpu/gemm_tile.h). Tiles read f32 with contiguous rows in place; other
// blocks are packed first (kernels/cpu/gemm_pack.h). Each element is a sum over k in a fixed order,
// in blocks of kGemmDepth, for any number of threads, rows and columns.

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace moe::kernels {

inline constexpr int64_t kGemmDepth = 256;    // depth (k) of a block
inline constexpr int64_t kGemmColumns = 512;  // columns of a packed block of B

// Element (i, j) is data[i * row + j * column].
struct MatrixView {
  const void* data;
  int64_t row, column;
  at::ScalarType dtype = at::kFloat;  // f32, bf16 or f16
  bool rounds_to_bf16 = false;        // f32 whose elements are rounded before they are multiplied

  MatrixView transposed() const { return {data, column, row, dtype, rounds_to_bf16}; }
  MatrixView from(int64_t i, int64_t j) const {  // the submatrix that starts at (i, j)
    const int64_t bytes = is_16_bit() ? 2 : 4;
    return {static_cast<const std::byte*>(data) + (i * row + j * column) * bytes, row, column,
            dtype, rounds_to_bf16};
  }
  bool is_16_bit() const { return dtype != at::kFloat; }
  bool is_bf16() const { return dtype == at::kBFloat16 || rounds_to_bf16; }
  bool is_plain_f32() const { return dtype == at::kFloat && !rounds_to_bf16; }
  const float* floats() const { return static_cast<const float*>(data); }
  float at(int64_t i, int64_t j) const;
};

struct GemmShape {
  int64_t m, n, k;
};

// One of the matrices that store consecutive columns of B.
struct ColumnBlock {
  MatrixView b;  // [k, columns]
  int64_t columns;
};
using ColumnBlocks = std::span<const ColumnBlock>;

// Computes c [m, n] = a [m, k] b [k, n], or adds the product to c if `accumulate`, on the threads
// of LibTorch's pool. c has a row stride of c_row. The bits do not depend on the blocks of b.
void gemm(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, float* c, int64_t c_row,
          bool accumulate);
void gemm_one_thread(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                     int64_t c_row, bool accumulate);

// gemm() with bf16 results: each complete sum is rounded once.
void gemm_to_bf16(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, uint16_t* c,
                  int64_t c_row);

// Computes the product on this thread. Calls consume(first, rows, c) for rows first .. first + rows
// - 1 of the result, c [rows, n], while their sums are in the cache. `consume` may overwrite c and
// must not call gemm(). REQUIRES: k > 0, n <= kGemmColumns, all blocks of one dtype.
using RowConsumer = std::function<void(int64_t first, int64_t rows, float* c)>;
void gemm_row_blocks(const GemmShape& shape, const MatrixView& a, ColumnBlocks b,
                     const RowConsumer& consume);

// Returns a view of an f32, bf16 or f16 CPU tensor as an operand in `type` (f32 or bf16). bf16
// tensors are read unchanged for both types, f16 tensors for f32 only.
MatrixView matrix_view(const at::Tensor& matrix, at::ScalarType type);
bool is_f32_or_bf16(const at::Tensor& tensor);
// Returns true if gemm() is faster than LibTorch for this shape: not for small products.
bool use_own_gemm(const GemmShape& shape);

// matmul_out() (kernels/ops/linear.h) on the CPU for matrices [K, N_i] that are concatenated along
// columns to [K, N]. is_mapped: they map a checkpoint file. Computed by skinny_gemm(), gemm() or
// LibTorch.
void matmul_out_cpu(const at::Tensor& out, const at::Tensor& left, at::TensorList right,
                    at::ScalarType type, bool is_mapped, bool accumulate);

// Returns `tensor` rounded to `type`, as an operand of LibTorch's products: bf16 is widened to f32.
at::Tensor operand_cpu(const at::Tensor& tensor, at::ScalarType type);

// Scratch memory that a thread reuses between calls. Allocations of varying sizes in each call
// would make the caching allocator (kernels/cpu/caching_allocator.h) split its blocks.
class Scratch {
 public:
  // Returns `count` floats, aligned to a cache line. The previous content may be lost.
  float* floats(int64_t count) {
    if (count > count_) {
      memory_.clear();
      memory_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(count) * sizeof(float));
      count_ = count;
    }
    return static_cast<float*>(memory_.get());
  }

 private:
  c10::DataPtr memory_;
  int64_t count_ = 0;
};

// SwiGLU fused with the products before it, for inference: out [R, F] = silu(x gate) * (x up). The
// products [R, 2F] are not materialised. The result has the bits of the products followed by
// swiglu() (kernels/ops/swiglu.h).
struct GemmSwigluArgs {
  MatrixView x;                // [R, D]
  ColumnBlocks gate_up;        // [D, 2F], gate first, F > 0, D > 0; all of one dtype
  void* out;                   // f32, or bf16 with is_bf16
  int64_t rows, inner, width;  // R, D, F
  bool is_bf16;                // rounds gate and up to bf16 before the activation
};
void fused_gemm_swiglu_cpu(const GemmSwigluArgs& args);

}  // namespace moe::kernels
