#pragma once
// The settings of `moe eval`, what they name, and its callbacks.

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/eval/report/routing_stats.h"
#include "core/eval/report/task_report.h"
#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/task.h"
#include "core/model/convert/upcycle_request.h"
#include "core/model/llama/compute.h"
#include "core/route/router_override.h"

namespace moe::eval {

struct EvalSettings {
  std::filesystem::path model;
  model::UpcycleRequest upcycle = {};
  std::vector<std::string> tasks;  // names of tasks and groups, or files of one's own (tasks.h)
  std::filesystem::path data;      // --data
  std::filesystem::path out;       // empty = no files
  bool force = false;              // replace files in `out`; also allows a change of gate
  bool force_memory = false;       // load the model although memory will be short
  std::optional<int64_t> limit;    // questions of each task
  Bos bos = Bos::kAuto;
  int64_t batch_tokens = 0;     // 0 = auto (scoring/batches.h)
  int64_t group_tokens = 4096;  // per logical rank
  route::RouterRequest router;
  std::filesystem::path stats;         // statistics file of a mixture's routing; empty = none
  StatsBy stats_by;                    // what it splits by
  Compat compat = Compat::kCurrent;    // whose definitions and defaults
  std::optional<int64_t> shots = {};   // --num-fewshot; none = as the task says
  std::filesystem::path against = {};  // another run's folder, to compare with; empty = none
  int64_t resamples = 100000;          // of a bootstrapped standard error; 0 = none
  // Where responses are kept for a run that is interrupted: a file, a folder for
  // responses.cache, "off", or empty: in `out` while the run lasts.
  std::string cache_responses = {};
  // The ranks that share the work; every one calls with the same settings and has the results, the
  // first writes the files. None: this process alone.
  distributed::Comm* ranks = nullptr;
  c10::Device device = c10::kCPU;                       // that computes
  model::Precision precision = model::Precision::kF32;  // of products

  bool is_rank_zero() const { return ranks == nullptr || ranks->rank() == 0; }
};

// Files that an evaluation reads and may not replace: of the model, of tasks that are files, of the
// run to compare with.
std::vector<std::filesystem::path> input_files(const EvalSettings& settings);

// What results.json calls the precision of products: "float32", "bfloat16" or "tf32".
std::string dtype_name(model::Precision precision);

// Callbacks while an evaluation runs. All may be empty.
struct EvalEvents {
  std::function<void(const std::string&)> note;  // a sentence the user should know
  std::function<void(const std::string& what, int64_t requests)> start;
  std::function<void(int64_t done)> progress;  // requests done since start
  // Of the requests since start, those found in the response cache. Called before `progress`.
  std::function<void(int64_t requests)> cached = {};
  // The mean of a task's main metric over the questions answered so far.
  RunningAccuracy::Callback running = {};
  // Called between forwards; true ends the run by Interrupted, which says how to continue.
  std::function<bool()> stop_requested = {};

  void notify(const std::string& sentence) const {
    if (note) {
      note(sentence);
    }
  }
};

}  // namespace moe::eval
