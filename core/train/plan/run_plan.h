#pragma once
// A run before its first step: settings, data and model checked and closed, and what is said of
// them at the start.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/resources.h"
#include "core/data/batches.h"
#include "core/data/token_cache.h"
#include "core/distributed/world.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/llama.h"
#include "core/train/observe/evaluator.h"
#include "core/train/observe/metrics.h"
#include "core/train/plan/memory_plan.h"
#include "core/train/run/settings.h"

namespace moe::train {

// What is known before the first step.
struct RunPlan {
  TrainSettings settings;            // resolved, steps included
  int64_t examples = 0, tokens = 0;  // of the data
  std::vector<std::string> data;     // a line for each file: what it was recognised as
  int64_t parameters = 0;
  bool is_moe = false;
  model::RoutingOptions routing;   // of a mixture
  std::string losses;              // of a mixture: what is minimised, in words
  distributed::Layout layout;      // of the processes
  std::vector<std::string> notes;  // warnings worth a line
  int64_t group_tokens = 0;        // of the largest micro-batch: what is routed together
  MemoryPlan memory;
  int64_t first_step = 0;  // steps done before: 0, or those of the checkpoint it goes on from
};

struct TrainCallbacks {
  // While the data are read, often: examples and tokens so far.
  std::function<void(int64_t, int64_t)> on_reading = [](int64_t, int64_t) {};
  std::function<void(const RunPlan&)> on_start = [](const RunPlan&) {};
  std::function<void(const StepRecord&)> on_step = [](const StepRecord&) {};
  std::function<void(const std::filesystem::path&)> on_saved = [](const std::filesystem::path&) {};
  std::function<void(const Evaluation&)> on_evaluated = [](const Evaluation&) {};
  EvaluateTasks evaluate_tasks = {};  // needed where the settings name tasks
  int64_t profiled_steps = 0;         // the first ones of this process go to RUN/trace.json
  std::function<bool()> stop_requested = [] { return false; };  // polled between steps
  // Called when the writing of a checkpoint begins (true) and ends (false), from any thread; may
  // nest.
  std::function<void(bool)> on_saving = [](bool) {};
};

// What a run is made of, before anything of it is written.
struct Prepared {
  io::Checkpoint checkpoint;
  data::Examples examples;
  RunPlan plan;
  std::optional<Evaluator> evaluator;  // always there when it is done
};

// UserError: what check_numbers, the readers and held_out.h say, --router on a dense folder.
// Interrupted: stop_requested said so while the data were read.
// `rank` of `processes` is this process; they open their data with what is `shared`.
Prepared prepare(const TrainSettings& settings, const TrainCallbacks& callbacks,
                 int64_t processes = 1, int64_t rank = 0, data::HostTokens* shared = nullptr);

// UserError where the replicas of `layout` cannot take the same number of a step's micro-batches.
void check_batches(const TrainSettings& settings, const distributed::Layout& layout);

data::BatchSettings batch_settings(const TrainSettings& settings);  // of resolved ones

// What a process of the run needs of the host's memory above what it has; nothing in a run on GPUs.
// Its `processes` is 1.
MemoryNeed memory_need(const RunPlan& plan);

// Everything up to the first weight: settings, data and model are checked as train() does, and no
// run is begun. Of rank 0 of `processes`, taken to share this host: a note says where its memory is
// short.
RunPlan plan_run(const TrainSettings& settings, int64_t processes = 1);

}  // namespace moe::train
