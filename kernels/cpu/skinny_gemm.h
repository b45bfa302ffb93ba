#pragma once
// Skinny GEMM on the CPU, for 1-48 rows, as in generation: reads B in place, where gemm() packs it.
// Kernels load several columns of B at once and transpose them in registers, so that a vector lane
// has one output column and the accumulation order along k is that of gemm(): both give the same
// bits. One row is bound by the memory bandwidth, more rows by arithmetic.
//
// m rows, k depth, n columns.

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

inline constexpr int64_t kMaxSkinnyRows = 48;

// Computes c [m, n] = a [m, k] b [k, n] with m <= kMaxSkinnyRows. a f32 with contiguous rows; b
// f32, bf16 or f16 with contiguous columns (b.row is 1); c has a row stride of c_row. The result
// does not depend on the number of threads or on other rows and columns: a sequence has the same
// numbers in any batch. Uses few_rows_kernels()[kernel].
void skinny_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c, int64_t c_row,
                 size_t kernel = 0);

inline constexpr int64_t kColumnBlock = 16;  // divides FewRowsArgs::n
inline constexpr int64_t kDepthBlock = 32;   // maximum number of elements loaded per column
static_assert(kGemmDepth % kDepthBlock == 0);

// T is float, or uint16_t for bf16.
template <typename T>
struct FewRowsArgs {
  const float* a;     // [m, lda]; columns k .. lda - 1 are zero
  int64_t m, k, lda;  // lda is a multiple of kDepthBlock
  const T* b;         // column j starts at b + j * ldb
  int64_t ldb, n;
  float* c;  // [m, ldc]
  int64_t ldc;
};

// Implementation for one instruction set.
struct FewRowsKernel {
  int64_t max_rows;
  void (*f32)(const FewRowsArgs<float>& in);
  void (*bf16)(const FewRowsArgs<uint16_t>& in);
  bool uses_fma;  // rounds product and sum once, as gemm() does on the same CPU
};

// Returns the kernels that this CPU supports, fastest first.
const std::vector<FewRowsKernel>& few_rows_kernels();

}  // namespace moe::kernels
