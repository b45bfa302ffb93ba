#pragma once
// Start of a run. Rank 0 decides from RUN if it is new, resumed or complete, and broadcasts that.

#include <filesystem>
#include <memory>

#include "core/distributed/comm.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

struct ResumePlan {
  std::filesystem::path folder;  // of the initial weights
  bool resumed = false;          // `folder` is a checkpoint of this run
  bool is_done = false;          // the run is complete
  std::unique_ptr<MetricsLog>
      log;  // of rank 0, unless the run is complete; refers to the RunFolder
};

// Checks memory and disk space and begins RUN: settings.toml, inputs.json, a line of starts.jsonl,
// and the log. Sets plan.first_step and adds notes to the plan. Collective. Throws UserError if
// memory or disk space is short, if the settings differ from those of the existing run
// (RunFolder::state()), or if all of its checkpoints are damaged.
ResumePlan begin_run(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint,
                     distributed::Comm& ranks);

// Returns the size of one checkpoint in bytes: a model folder, and the f32 weight and two moments
// of every parameter.
uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan);

}  // namespace moe::train
