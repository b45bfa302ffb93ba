#pragma once
// Loads the tasks and groups named on the command line: reads their documents and builds questions,
// with few-shot examples drawn as in the harness's samplers.py and task.py.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/tasks/known_tasks.h"

namespace moe::eval {

struct TaskOptions {
  Compat compat = Compat::kCurrent;
  std::optional<int64_t> shots = {};  // --num-fewshot; empty: each task's default
};

struct LoadedTask {
  Task task;
  std::vector<Question> questions;                // at most `limit`, in file order
  int64_t total_questions = 0;                    // in the file
  int64_t shots = 0;                              // few-shot examples per question
  std::vector<std::string> notes = {};            // messages for the user
  std::vector<std::filesystem::path> files = {};  // that the questions and examples were read from
};

// Loads known tasks and groups, users' task files (.json or .toml, task.h), and quizzes (.jsonl). A
// task of several groups is loaded once. For a known task, reads the authors' files below `data`,
// or else the Hub's export TASK/SPLIT.jsonl or .csv. Throws UserError if a name is unknown
// (suggests the nearest one) or is given twice, a file is missing (lists the expected paths), or a
// document is invalid (with its line).
std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names,
                                   const std::filesystem::path& data, std::optional<int64_t> limit,
                                   const TaskOptions& options = {});

// Returns the text of --list.
std::string task_list();

inline constexpr uint32_t kShotSeed = 1234;  // the harness's fewshot_random_seed

// Draws few-shot examples. All draws use one random stream, so before() must be called once per
// document in file order.
class ShotSampler {
 public:
  // `task` and `pool` must outlive the sampler. Throws UserError if `pool` has too few documents.
  ShotSampler(const Task& task, const std::vector<Document>& pool, int64_t count);

  // Returns the text before the prompt of `document`: description and examples. Throws UserError if
  // the pool has too few documents other than `document`.
  std::string before(const OrderedJson& document);

 private:
  std::vector<size_t> draw(const OrderedJson& document);

  const Task& task_;
  const std::vector<Document>& pool_;
  int64_t count_;
  PythonRandom random_;
};

// Returns a few-shot example with its answer, without the delimiter after it. Throws UserError with
// the document's file and line if it has no right answer.
std::string shot_text(const Task& task, const Document& document);

}  // namespace moe::eval
