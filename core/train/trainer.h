#pragma once
// The loop: batches -> gradients -> clip -> AdamW -> record, until the steps are done. Everything a
// user can get wrong is found before RUN is made. On the CPU the same settings give the same
// numbers bit for bit, for the same number of threads.

#include <functional>
#include <string>
#include <vector>

#include "core/model/llama.h"
#include "core/train/evaluator.h"
#include "core/train/memory_plan.h"
#include "core/train/metrics.h"
#include "core/train/settings.h"

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
  std::vector<std::string> notes;  // warnings worth a line
  int64_t group_tokens = 0;        // of the largest micro-batch: what is routed together (SPEC D4)
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
  std::function<bool()> stop_requested = [] { return false; };  // asked between steps
};

// Everything up to the first weight: settings, data and model are checked as train() does, and
// nothing is written.
RunPlan plan_run(const TrainSettings& settings);

// Trains and leaves RUN/final. UserError: what check_numbers, the readers and RunFolder say,
// --router on a dense folder. std::runtime_error: a loss or gradient that is no number; names the
// step and the last good checkpoint; what --eval-data says (held_out.h). Interrupted:
// stop_requested said so; a checkpoint of the steps done was saved.
//
// A RUN that is there goes on from its newest whole checkpoint when the settings are the same; on
// the CPU the result is that of a run never stopped, bit for bit. A finished one is left as it is
// (on_start is called, no step).
void train(const TrainSettings& settings, const TrainCallbacks& callbacks);

}  // namespace moe::train
