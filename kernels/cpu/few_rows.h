#pragma once
// Rows that are too few to pack a matrix for, with columns of it as they lie: some columns are read
// side by side and transposed in registers, so that a vector holds one number of each and a sum
// runs along k in gemm()'s order. One kernel for each instruction set; kernels/cpu/skinny_gemm.h
// chooses.

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/read_ahead.h"

namespace moe::kernels {

inline constexpr int64_t kColumnsOfFewRows = 16;  // of b: what a kernel takes is a multiple of them
inline constexpr int64_t kStepOfFewRows = 32;     // numbers of a column at a time, at most
static_assert(kGemmDepth % kStepOfFewRows == 0);

// Number is float or uint16_t, which is bf16.
template <typename Number>
struct FewRows {
  const float* a;  // `padded` numbers apart, a multiple of kStepOfFewRows, zeros behind k
  int64_t rows, k, padded;
  const Number* b;  // columns `stride` numbers apart
  int64_t stride, columns;
  float* c;
  int64_t c_row;
};

// What makes such a product of 1 .. `rows` rows.
struct FewRowsKernel {
  int64_t rows;
  void (*of_f32)(const FewRows<float>& in);
  void (*of_bf16)(const FewRows<uint16_t>& in);
  bool fuses;  // a product and its sum are rounded once, as gemm() does on the same processor
};

// Those that this machine can run, the fastest first.
const std::vector<FewRowsKernel>& few_rows_kernels();

#if defined(__x86_64__)
FewRowsKernel few_rows_avx512();
FewRowsKernel few_rows_avx2();
#endif

// Numbers that are read later, in the order of memory: those of the next columns into the first
// cache, if it has room for them, others into the second.
template <typename Number>
struct LinesAhead {
  const Number *soon, *later;
};

// Whether `columns` of them are so few numbers.
template <typename Number>
bool are_asked_for_soon(const FewRows<Number>& in, int64_t columns) {
  return columns * in.stride * static_cast<int64_t>(sizeof(Number)) <= kBytesSoon;
}

// Behind `columns` columns at b, if they are read soon or later.
template <typename Number>
LinesAhead<Number> lines_ahead(const Number* b, int64_t stride, int64_t columns, bool is_soon) {
  const Number* next = b + columns * stride;
  return {next, is_soon ? b + kBytesAhead / static_cast<int64_t>(sizeof(Number)) : next};
}

}  // namespace moe::kernels
