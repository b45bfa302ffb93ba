#pragma once
// What a run will take of memory, from shapes alone: bytes by class and the peak to expect, before
// a weight is loaded. The peak is found by walking through a step: forward (what each layer keeps),
// the head, backward layer by layer (activations go, gradients come), the update, a checkpoint.

#include <cstdint>

#include "core/distributed/world.h"
#include "core/model/config/config.h"
#include "core/train/run/settings.h"

namespace moe::train {

// What a process takes of a GPU's memory before it loads anything: context, libraries, NCCL's
// buffers.
constexpr uint64_t kCudaProgram = uint64_t{1} << 30;

struct MemoryPlan {
  // All in bytes, of one process of a layout: the first, which holds the most. Of its GPU in a run
  // on GPUs.
  uint64_t program = 0;      // what the process takes before it loads anything
  uint64_t weights = 0;      // f32, adapters included; on a GPU in bf16 the copies of what trains
                             // besides (kernels/ops/bf16_working_copy.h)
  uint64_t gradients = 0;    // f32, of what trains
  uint64_t optimizer = 0;    // two moments of what this process updates
  uint64_t activations = 0;  // kept for backward, of one micro-batch
  uint64_t workspace = 0;    // what comes and goes, at the peak
  uint64_t checkpoint = 0;   // the copy that is written beside training; 0 without checkpoints,
                             // and of a GPU, whose copy lies in the host's memory
  uint64_t evaluation = 0;   // the whole model, gathered between steps to evaluate it; 0 where a
                             // process has all of it anyway, or nothing is evaluated
  uint64_t peak = 0;
};

// Of `settings` that are resolved, for micro-batches of `tokens` tokens, of which the places of an
// expert-parallel group have equal parts, and a process that takes `program` now. Routers without a
// capacity route as many rows as their text says; a top-p or ReLU router is taken as one that has
// learned nothing, which is when it routes most (README.md of core has the letters).
MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout = {});

// Rows that a layer of experts routes of `tokens` tokens, as above.
int64_t routed_rows(const route::RouterSettings& router, int64_t tokens, int64_t experts);

}  // namespace moe::train
