#pragma once
// Prints of moe train that do not train: the memory estimate of --dry-run, of one process or of one
// GPU of a cluster, and the examples of --show-samples.

#include "cli/train_flags.h"
#include "core/train/loop/plan.h"

namespace moe::cli {

void print_memory(const train::MemoryPlan& memory, bool of_gpu, bool as_json);

// Prints the memory of one GPU for --nodes and --gpus. Throws UserError without --dry-run, and what
// plan_cluster() throws.
void print_cluster(const TrainFlags& flags);

// The first `count` examples on standard output, and nothing else: in colour on a terminal (unless
// NO_COLOR is set), with brackets in a pipe.
void print_samples(const train::TrainSettings& settings, int64_t count);

}  // namespace moe::cli
