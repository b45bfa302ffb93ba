#pragma once
// How a run begins: anew, from a checkpoint of its own, or not at all because it is done. Whoever
// is rank 0 decides it from RUN and tells the others.

#include <filesystem>
#include <memory>

#include "core/distributed/world.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

struct RunStart {
  std::filesystem::path folder;     // of the weights
  bool resumed = false;             // it is a checkpoint of this run
  bool is_done = false;             // the run has come to its end before
  std::unique_ptr<MetricsLog> log;  // of rank 0, unless the run is done
};

// Decides, checks the disk and begins RUN: settings.toml, a line of the run history (starts.jsonl,
// observe/history.h) and the log, which refers to `folder`. Puts into `plan` the first step and
// notes of what was found. Every rank calls it. UserError: what RunFolder::state() and MetricsLog
// say, too little space, a run of which no checkpoint is whole.
RunStart begin_run(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint,
                   distributed::Comm& ranks);

// Of one checkpoint: a model folder, and of every parameter the weight in f32 and two moments.
uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan);

}  // namespace moe::train
