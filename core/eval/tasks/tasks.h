#pragma once
// From the names on a command line to questions: tables, users' files, groups.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/tasks/known_tasks.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

struct TaskOptions {
  Compat compat = Compat::kCurrent;
  std::optional<int64_t> shots = {};  // --num-fewshot
};

struct LoadedTask {
  Task task;
  std::vector<Question> questions;      // the first `limit` of the file
  int64_t total_questions = 0;          // before the limit
  int64_t shots = 0;                    // examples before each
  std::vector<std::string> notes = {};  // what the user should know
};

// `names`: tasks and groups of the tables, a user's task file (.json or .toml, task_file.h), or a
// quiz (.jsonl), which is named by its file. Tasks of several groups come once. UserError: an
// unknown name (the nearest known one is named), a name twice, a file that is not under `data`, a
// document that cannot be made a question (with its line).
std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names,
                                   const std::filesystem::path& data, std::optional<int64_t> limit,
                                   const TaskOptions& options = {});

// The groups of the table that are among `names`, with the groups inside them.
std::vector<std::string> groups_among(const std::vector<std::string>& names);

// --list: each task and group, its version, where its files are expected and where they come from.
std::string task_list();

// The documents of a task under --data.
struct FoundFiles {
  Files files;
  std::vector<Document> documents;
  int64_t total = 0;  // in the files; those beyond the limit were only counted
};

// Reads the first `limit` documents of `split` from the authors' files, or else from the Hub's
// export TASK/SPLIT.jsonl or .csv. Throws UserError: no such file (names all paths); no documents.
FoundFiles find_documents(const Task& task, const Split& split, const std::filesystem::path& data,
                          int64_t limit = kAllDocuments);

// Returns the paths as text: "logiqa/Test.txt, or logiqa/test.jsonl or .csv".
std::string expected_paths(const Task& task, const Split& split);

}  // namespace moe::eval
