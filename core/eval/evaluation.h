#pragma once
// An evaluation in two steps, so that a sweep reads and encodes once and runs often.

#include <vector>

#include "core/eval/encoded_tasks.h"
#include "core/eval/evaluate.h"
#include "core/eval/runner.h"

namespace moe::eval {

int64_t count_cut(const std::vector<Request>& requests);
void tell_cut(const EvalEvents& events, const std::string& what, int64_t cut, int64_t window);

// The settings' tasks, read (tasks.h).
std::vector<LoadedTask> load_asked(const EvalSettings& settings);

class Evaluation {
 public:
  // Opens the model's folder without its weights and begins to encode the tasks. The settings and
  // events must outlive it. UserError: what open_subject says.
  Evaluation(const EvalSettings& settings, const EvalEvents& events, std::vector<LoadedTask> tasks);

  Subject subject;  // its routing may be changed before a run (and Runner::restart)

  // Every task, by the subject's routing, with averages; nothing is written. The last run takes the
  // questions with it. UserError: a task that cannot be encoded.
  RunReport run(Runner& runner, bool is_last);

  const std::vector<LoadedTask>& tasks() const { return tasks_; }

 private:
  // Waits for a task and says what of it was cut. Any rank's error is that of all.
  const EncodedTask& encoded(size_t index);

  const EvalSettings& settings_;
  const EvalEvents& events_;
  std::vector<LoadedTask> tasks_;
  EncodedTasks encoded_;  // last: its thread reads the subject and the tasks
};

}  // namespace moe::eval
