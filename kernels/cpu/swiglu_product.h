#pragma once
// SwiGLU with the products before it, for inference on the CPU: gate and up of some rows and
// columns meet while they lie in the cache, and [R, 2F] is never written to memory. The same bits
// as product, then kernels/ops/swiglu.h.

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

// out [R, F] = silu(x gate) * (x up), f32 or, where `is_bf16`, the bits of bf16, gate and up then
// being rounded to bf16 before they meet, as products are that leave memory.
struct SwigluProductArgs {
  MatrixView x;           // [R, D]
  ColumnBlocks gate, up;  // [D, F] each, F > 0, D > 0; all of one dtype
  void* out;
  int64_t rows, inner, width;  // R, D, F
  bool is_bf16;
};
void swiglu_product_cpu(const SwigluProductArgs& args);

}  // namespace moe::kernels
