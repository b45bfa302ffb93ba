#pragma once
// A whole model out of the shares of an expert-parallel group.

#include "core/distributed/comm.h"
#include "core/model/llama/llama.h"

namespace moe::train {

// The model that `share` is this process's share of, with its weights now, on every process of
// `group`; all of them call it. `parent`: a folder of a model of this shape. Takes the memory of
// the whole model.
model::Llama gather_experts(const model::Llama& share, const io::Checkpoint& parent,
                            const model::ComputeOptions& compute, distributed::Comm& group);

}  // namespace moe::train
