#pragma once
// The CUDA half of this library as one table of functions: operations reach it through here and
// nowhere else, so that it can be a library of its own (libmoe_cuda.so), opened when somebody first
// asks for a GPU.

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/device.h"
#include "kernels/ops/logsumexp.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/plan_weights.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/stochastic_round.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/top_k_plan.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace moe::kernels {

// What kernels/cuda defines, or the emulator of the tests. LibTorch's device and streams:
int64_t gpu_count_cuda();
std::string gpu_name_cuda(int64_t gpu);
uint64_t gpu_peak_bytes_cuda(int64_t gpu);
bool gpu_has_grouped_mm_cuda(int64_t gpu);  // compute capability 9.x or 10.x
void* current_stream_cuda(c10::Device device);
// All ranks wait in it for the others to connect.
c10::intrusive_ptr<c10d::Backend> make_nccl_cuda(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size,
                                                 std::chrono::milliseconds timeout,
                                                 c10::Device device);

struct CudaFunctions {
  decltype(&gpu_count_cuda) gpu_count;
  decltype(&gpu_name_cuda) gpu_name;
  decltype(&gpu_peak_bytes_cuda) gpu_peak_bytes;
  decltype(&gpu_has_grouped_mm_cuda) gpu_has_grouped_mm;
  decltype(&current_stream_cuda) current_stream;
  decltype(&make_nccl_cuda) make_nccl;
  decltype(&adamw_cuda) adamw;
  decltype(&cross_entropy_cuda) cross_entropy;
  decltype(&logsumexp_cuda) logsumexp;
  decltype(&permute_cuda) permute;
  decltype(&unpermute_cuda) unpermute;
  decltype(&unpermute_backward_cuda) unpermute_backward;
  decltype(&segment_rows_cuda) segment_rows;
  decltype(&plan_counts_cuda) plan_counts;
  decltype(&plan_weights_cuda) plan_weights;
  decltype(&plan_weights_backward_cuda) plan_weights_backward;
  decltype(&rms_norm_forward_cuda) rms_norm_forward;
  decltype(&rms_norm_backward_cuda) rms_norm_backward;
  decltype(&rope_cuda) rope;
  decltype(&router_logits_cuda) router_logits;
  decltype(&router_logits_backward_cuda) router_logits_backward;
  decltype(&router_choices_cuda) router_choices;
  decltype(&stochastic_round_cuda) stochastic_round;
  decltype(&swiglu_forward_cuda) swiglu_forward;
  decltype(&swiglu_backward_cuda) swiglu_backward;
  decltype(&top_k_plan_cuda) top_k_plan;
};

// The table. Nothing of ours makes a CUDA tensor where gpu_count() is 0 (flags refuse --device cuda
// by name), so a missing table is a defect of ours: std::logic_error.
const CudaFunctions& cuda_functions();

}  // namespace moe::kernels
