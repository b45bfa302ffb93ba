// The table that ops/cuda_functions.h declares, filled with what this folder defines.

#include "kernels/ops/cuda_functions.h"

extern "C" const moe::kernels::CudaFunctions* moe_cuda_functions() {
  using namespace moe::kernels;
  static const CudaFunctions functions = {
      .gpu_count = gpu_count_cuda,
      .gpu_name = gpu_name_cuda,
      .gpu_peak_bytes = gpu_peak_bytes_cuda,
      .gpu_has_grouped_mm = gpu_has_grouped_mm_cuda,
      .current_stream = current_stream_cuda,
      .make_nccl = make_nccl_cuda,
      .adamw = adamw_cuda,
      .cross_entropy = cross_entropy_cuda,
      .logsumexp = logsumexp_cuda,
      .permute = permute_cuda,
      .unpermute = unpermute_cuda,
      .unpermute_backward = unpermute_backward_cuda,
      .segment_rows = segment_rows_cuda,
      .plan_counts = plan_counts_cuda,
      .plan_weights = plan_weights_cuda,
      .plan_weights_backward = plan_weights_backward_cuda,
      .rms_norm_forward = rms_norm_forward_cuda,
      .rms_norm_backward = rms_norm_backward_cuda,
      .rope = rope_cuda,
      .router_logits = router_logits_cuda,
      .router_logits_backward = router_logits_backward_cuda,
      .router_choices = router_choices_cuda,
      .stochastic_round = stochastic_round_cuda,
      .swiglu_forward = swiglu_forward_cuda,
      .swiglu_backward = swiglu_backward_cuda,
      .top_k_plan = top_k_plan_cuda,
  };
  return &functions;
}
