// Registers the CUDA kernels with PyTorch's dispatcher (schemas in kernels/ops/operations.cpp) and
// fills the table of ops/cuda_functions.h.

#include <torch/library.h>

#include "kernels/ops/operations.h"

extern "C" const moe::kernels::CudaFunctions* moe_cuda_functions() {
  using namespace moe::kernels;
  static const CudaFunctions functions = {
      .gpu_count = gpu_count_cuda,
      .gpu_name = gpu_name_cuda,
      .gpu_peak_bytes = gpu_peak_bytes_cuda,
      .gpu_has_grouped_mm = gpu_has_grouped_mm_cuda,
      .make_nccl = make_nccl_cuda,
  };
  return &functions;
}

namespace moe::kernels {

TORCH_LIBRARY_IMPL(moe, CUDA, library) {
  MOE_REGISTER_KERNELS(library, cuda);
  library.impl("segment_rows", &segment_rows_on<segment_rows_cuda>);
  library.impl("adamw_", &adamw_on<adamw_cuda>);
  library.impl("rope", &rope_on<rope_cuda>);
  library.impl("router_logits", &router_logits_on<router_logits_cuda>);
  library.impl("router_logits_backward", &router_logits_backward_on<router_logits_backward_cuda>);
}

}  // namespace moe::kernels
