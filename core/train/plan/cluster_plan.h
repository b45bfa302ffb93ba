#pragma once
// Memory plan of a run on a cluster, for --dry-run with --nodes and --gpus. Only the config is
// read.

#include <cstdint>
#include <string>
#include <vector>

#include "core/train/plan/memory_plan.h"

namespace moe::train {

struct ClusterPlan {
  TrainSettings settings;  // resolved
  route::RouterSettings router;
  distributed::Layout layout;
  MemoryPlan memory;               // of one GPU
  int64_t parameters = 0;          // of the model
  std::vector<std::string> notes;  // warnings of known_failures()
};

// Plans `settings` on `nodes` machines with `gpus` GPUs each. settings.model is a folder or a
// config.json; a dense one is planned as the mixture of settings.upcycle. Throws UserError if a
// count is not positive, or if the config, mixture, router or layout are invalid.
ClusterPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus);

}  // namespace moe::train
