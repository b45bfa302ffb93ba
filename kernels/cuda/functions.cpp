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
  library.impl("permute", &permute_on<permute_cuda>);
  library.impl("unpermute", &unpermute_on<unpermute_cuda>);
  library.impl("unpermute_backward", &unpermute_backward_on<unpermute_backward_cuda>);
  library.impl("segment_rows", &segment_rows_on<segment_rows_cuda>);
  library.impl("swiglu", &swiglu_on<swiglu_forward_cuda>);
  library.impl("swiglu_backward", &swiglu_backward_on<swiglu_backward_cuda, false>);
  library.impl("swiglu_backward_", &swiglu_backward_on<swiglu_backward_cuda, true>);
  library.impl("logsumexp_argmax", &logsumexp_argmax_on<logsumexp_cuda>);
  library.impl("cross_entropy_", &cross_entropy_on<cross_entropy_cuda>);
  library.impl("stochastic_round", &stochastic_round_on<stochastic_round_cuda>);
  library.impl("adamw_", &adamw_on<adamw_cuda>);
  library.impl("rms_norm", &rms_norm_on<rms_norm_forward_cuda>);
  library.impl("rms_norm_backward", &rms_norm_backward_on<rms_norm_backward_cuda>);
  library.impl("rope", &rope_on<rope_cuda>);
  library.impl("router_logits", &router_logits_on<router_logits_cuda>);
  library.impl("router_logits_backward", &router_logits_backward_on<router_logits_backward_cuda>);
  library.impl("router_choices", &router_choices_on<router_choices_cuda>);
  library.impl("top_k_plan", &top_k_plan_on<top_k_plan_cuda>);
  library.impl("plan_counts", &plan_counts_on<plan_counts_cuda>);
  library.impl("plan_gate_weights", &plan_gate_weights_on<plan_gate_weights_cuda>);
  library.impl("plan_gate_weights_backward",
               &plan_gate_weights_backward_on<plan_gate_weights_backward_cuda>);
}

}  // namespace moe::kernels
