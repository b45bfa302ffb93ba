#pragma once
// The CUDA half of this library as one table of functions: operations reach it through here and
// nowhere else, so a binary without CUDA needs no stand-ins, and the table could as well be found
// in a library that is opened when a run asks for a GPU.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/device.h"
#include "kernels/ops/graph.h"
#include "kernels/ops/logsumexp.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/stochastic_round.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

// What kernels/cuda defines, or the emulator of the tests. LibTorch's device, streams and graphs:
int64_t gpu_count_cuda();
std::string gpu_name_cuda(int64_t gpu);
uint64_t gpu_peak_bytes_cuda(int64_t gpu);
void* current_stream_cuda(c10::Device device);
std::unique_ptr<RecordedGraph> record_graph_cuda(const std::function<void()>& work,
                                                 c10::Device device);

struct CudaFunctions {
  decltype(&gpu_count_cuda) gpu_count;
  decltype(&gpu_name_cuda) gpu_name;
  decltype(&gpu_peak_bytes_cuda) gpu_peak_bytes;
  decltype(&current_stream_cuda) current_stream;
  decltype(&record_graph_cuda) record_graph;
  decltype(&adamw_cuda) adamw;
  decltype(&cross_entropy_cuda) cross_entropy;
  decltype(&logsumexp_cuda) logsumexp;
  decltype(&permute_cuda) permute;
  decltype(&unpermute_cuda) unpermute;
  decltype(&unpermute_backward_cuda) unpermute_backward;
  decltype(&segment_rows_cuda) segment_rows;
  decltype(&rms_norm_forward_cuda) rms_norm_forward;
  decltype(&rms_norm_backward_cuda) rms_norm_backward;
  decltype(&rope_cuda) rope;
  decltype(&router_logits_cuda) router_logits;
  decltype(&router_choices_cuda) router_choices;
  decltype(&stochastic_round_cuda) stochastic_round;
  decltype(&swiglu_forward_cuda) swiglu_forward;
  decltype(&swiglu_backward_cuda) swiglu_backward;
  decltype(&top_k_plan_cuda) top_k_plan;
};

// The table. Nothing of ours makes a CUDA tensor in a build without CUDA (flags refuse --device
// cuda by name), so a missing table is a defect of ours: std::logic_error.
const CudaFunctions& cuda_functions();

}  // namespace moe::kernels
