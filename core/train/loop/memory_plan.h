#pragma once
// Memory estimate of a training run from shapes alone.

#include <cstdint>

#include "core/distributed/comm.h"
#include "core/model/config/config.h"
#include "core/route/router.h"
#include "core/train/config/settings.h"

namespace moe::train {

// GPU memory of a process before it loads anything: context, libraries, NCCL's buffers.
constexpr uint64_t kCudaProgram = uint64_t{1} << 30;

// Memory of a run in bytes: GPU memory if the run uses GPUs, else host memory. The values are those
// of the first process of a layout, which needs the most.
struct MemoryPlan {
  uint64_t program = 0;  // before anything is loaded
  // f32, adapters included; with bf16 on a GPU also the bf16 copies
  // (kernels/ops/bf16_working_copy.h).
  uint64_t weights = 0;
  uint64_t gradients = 0;    // f32, of the parameters that train
  uint64_t optimizer = 0;    // two moments of the elements that this process updates
  uint64_t activations = 0;  // kept for backward, of one micro-batch
  uint64_t workspace = 0;    // temporary memory at the peak
  uint64_t checkpoint = 0;   // copy written in the background; 0 on a GPU (it is in host memory)
  uint64_t evaluation = 0;   // the gathered model of an evaluation; 0 if no model is gathered
  uint64_t peak = 0;
};

// Computes the plan by a walk through forward (activations of each layer), head, backward
// (activations are freed, gradients allocated), update and checkpoint. Requires resolved
// `settings`. `tokens` is the number of tokens of a micro-batch, which the ranks of an
// expert-parallel group divide equally. `program` is the current memory of the process in bytes.
MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout = {});

}  // namespace moe::train
