#pragma once
// How the products of several experts are computed on a GPU.

namespace moe::kernels {

enum class GroupedGemm {
  // kLoop where the host knows the tokens per expert, kGrouped where the device alone does: nothing
  // is read back for the products' sake.
  kAuto,
  // One product an expert by cuBLAS. The host must know where each expert's rows end: where only
  // the device does, it waits and reads. It cannot be recorded as a graph then.
  kLoop,
  // All in one launch by LibTorch's grouped GEMM (`at::_grouped_mm`), which reads on the device
  // where segments end; f32 and bf16. Elsewhere, and on the CPU, the loop.
  kGrouped,
};

}  // namespace moe::kernels
