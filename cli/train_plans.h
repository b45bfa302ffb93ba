#pragma once
// What moe train --dry-run prints: memory by class of one process, or of a GPU of a cluster with
// what its steps cost.

#include "cli/train_flags.h"
#include "core/train/plan/memory_plan.h"

namespace moe::cli {

void print_memory(const train::MemoryPlan& memory, bool of_gpu, bool as_json);

// --nodes, --gpus. UserError: without --dry-run, and what plan_cluster says.
void print_cluster(const TrainFlags& flags);

}  // namespace moe::cli
