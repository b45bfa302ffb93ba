#pragma once
// An evaluation in two steps, so that a sweep reads and encodes once and runs often.

#include <vector>

#include "core/eval/evaluate.h"
#include "core/eval/runner.h"

namespace moe::eval {

int64_t count_cut(const std::vector<Request>& requests);
void tell_cut(const EvalEvents& events, const std::string& what, int64_t cut, int64_t window);

// The settings' tasks, read (tasks.h).
std::vector<LoadedTask> load_asked(const EvalSettings& settings);

// What the model is asked: scores of requests, or answers to prompts.
struct EncodedTask {
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> prompts;
};

class Evaluation {
 public:
  // Opens the model's folder without its weights and encodes the tasks. The settings and events
  // must outlive it. UserError: what open_subject says, a task that cannot be encoded.
  Evaluation(const EvalSettings& settings, const EvalEvents& events, std::vector<LoadedTask> tasks);

  Subject subject;  // its routing may be changed before a run (and Runner::restart)

  // Every task, by the subject's routing, with averages; nothing is written. The last run takes the
  // questions with it.
  RunReport run(Runner& runner, bool is_last);

  const std::vector<LoadedTask>& tasks() const { return tasks_; }

 private:
  const EvalSettings& settings_;
  const EvalEvents& events_;
  std::vector<LoadedTask> tasks_;
  std::vector<EncodedTask> encoded_;
};

}  // namespace moe::eval
