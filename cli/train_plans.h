#pragma once
// What moe train prints in place of a run. --dry-run: memory by class of one process, or of a GPU
// of a cluster with what its steps cost. --show-samples: what the model will see.

#include "cli/train_flags.h"
#include "core/train/plan/memory_plan.h"

namespace moe::cli {

void print_memory(const train::MemoryPlan& memory, bool of_gpu, bool as_json);

// --nodes, --gpus. UserError: without --dry-run, and what plan_cluster says.
void print_cluster(const TrainFlags& flags);

// The first `count` examples on standard output, and nothing else: in colour on a terminal (unless
// NO_COLOR is set), with brackets in a pipe.
void print_samples(const train::TrainSettings& settings, int64_t count);

}  // namespace moe::cli
