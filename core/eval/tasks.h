#pragma once
// The benchmarks, a line each: files, prompt, choices, gold, metrics. A task turns documents
// (formats.h) into questions; everything after that is the same for all of them.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/formats.h"

namespace moe::eval {

// A multiple-choice question, as text. The continuation of choice i is " " + choices[i].
struct Question {
  OrderedJson fields;  // the document, for the sample log
  std::string context;
  std::vector<std::string> choices;  // two or more
  int64_t gold = 0;                  // index of the right choice
  std::string where;                 // file and line, for messages
  std::string source = {};           // for statistics (lines.h)
};

struct Task {
  std::string name;
  std::vector<std::string> files;  // under --data; one '*' in a file's name stands for any letters
  int64_t harness_items = 0;       // questions of the split that the harness scores; 0 = any number
  std::function<std::vector<Document>(const Files&)> read;
  std::function<std::string(const OrderedJson&)> prompt;
  std::function<std::vector<std::string>(const OrderedJson&)> choices;
  std::function<int64_t(const OrderedJson&)> gold;
  std::vector<std::string> metrics;
  std::optional<double>
      version;  // lm-evaluation-harness' version of the task; none for one's own quiz
};

inline constexpr const char* kChoiceDelimiter = " ";  // the harness's target_delimiter

const std::vector<Task>& known_tasks();

struct LoadedTask {
  Task task;
  std::vector<Question> questions;  // the first `limit` of the file
  int64_t total_questions = 0;      // before the limit
};

// `names`: task names of the table, or paths of JSONL files (they end in .jsonl), whose task is
// named by the file. UserError: an unknown name (the nearest known one and all of them are told), a
// name twice, a file that is not under `data`.
std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names,
                                   const std::filesystem::path& data,
                                   std::optional<int64_t> limit);

}  // namespace moe::eval
