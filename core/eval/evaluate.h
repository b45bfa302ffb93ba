#pragma once
// The whole of `moe eval`: files and a folder in, a report out. Everything a user can have wrong is
// looked at before the weights are loaded.

#include <filesystem>
#include <string>
#include <vector>

#include "core/eval/encoded_tasks.h"
#include "core/eval/report/report.h"
#include "core/eval/runner.h"
#include "core/eval/settings.h"

namespace moe::eval {

// Interrupted where events.stop_requested says so.
RunReport evaluate(const EvalSettings& settings, const EvalEvents& events = {});

// The scores of a file of {"context", "continuation"} lines, in order; `settings` without tasks.
Scores evaluate_requests(const EvalSettings& settings, const std::filesystem::path& file,
                         const EvalEvents& events = {});

// The routing statistics of raw text (scoring/token_tally.h); `settings` without tasks and out.
RoutingStats evaluate_texts(const EvalSettings& settings,
                            const std::vector<std::filesystem::path>& files,
                            const EvalEvents& events = {});

// The settings' tasks, read (tasks.h).
std::vector<LoadedTask> load_requested_tasks(const EvalSettings& settings);

// An evaluation in two steps, so that a sweep reads and encodes once and runs often.
class PreparedEvaluation {
 public:
  // Opens the model's folder without its weights and begins to encode the tasks. The settings and
  // events must outlive it. UserError: what open_model says.
  PreparedEvaluation(const EvalSettings& settings, const EvalEvents& events,
                     std::vector<LoadedTask> tasks);

  OpenedModel opened;  // its routing may be changed before a run (and Runner::restart)

  // Every task, by the routing of `opened`, with averages; no file is written. The last run takes
  // the questions with it. UserError: a task that cannot be encoded.
  RunReport run(Runner& runner, bool is_last);

  const std::vector<LoadedTask>& tasks() const { return tasks_; }

 private:
  // Waits for a task and says what of it was cut. Any rank's error is that of all.
  const EncodedTask& encoded(size_t index);

  const EvalSettings& settings_;
  const EvalEvents& events_;
  std::vector<LoadedTask> tasks_;
  EncodedTasks encoded_;  // last: its thread reads the opened and the tasks
};

}  // namespace moe::eval
