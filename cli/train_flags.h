#pragma once
// The flags of moe train and the settings they make.

#include <string>

#include "core/distributed/launch.h"
#include "core/train/config/settings.h"

namespace CLI {
class App;
}

namespace moe::cli {

// The settings of the run, and what this one call does beside.
struct TrainFlags {
  train::TrainSettings settings;
  int64_t show_samples = 0;  // 0 = train
  distributed::RankSettings ranks;
  std::optional<int64_t> nodes, gpus;  // memory estimate of a cluster
  int64_t profile = 0;                 // steps; 0 = none
  bool quiet = false, json = false, resume = false, dry_run = false, show_settings = false;
};

// All of them; `flags` outlives `command`.
void add_train_flags(CLI::App& command, TrainFlags& flags);

}  // namespace moe::cli
