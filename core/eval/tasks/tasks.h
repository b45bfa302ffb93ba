#pragma once
// Loads the tasks and groups named on the command line: reads their documents and builds the
// questions. Few-shot examples are drawn as in the harness's samplers.py and task.py.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/tasks/task.h"

namespace moe::eval {

// A message of a prompt: "system", "user" or "assistant". `delimiter` follows it if the messages
// are joined to a text.
struct Message {
  std::string role, content, delimiter;
};
using Messages = std::vector<Message>;

// Returns contents and delimiters as one text.
std::string join(const Messages& messages);

struct TaskOptions {
  Compat compat = Compat::kCurrent;
  std::optional<int64_t> shots = {};    // --num-fewshot; empty: each task's default
  std::string system_instruction = {};  // before each task's description
  // Renders a conversation. If its last message is the assistant's, the model continues that one.
  // Empty: the prompt is join() of the messages.
  std::function<std::string(const Messages&)> render_chat = {};
  bool examples_as_turns = true;  // false: one message of the user has examples and question
};

struct LoadedTask {
  Task task;
  std::vector<Question> questions;                // the first `limit` questions, in file order
  int64_t total_questions = 0;                    // number of questions in the file
  int64_t shots = 0;                              // few-shot examples per question
  std::vector<std::string> notes = {};            // messages for the user
  std::vector<std::filesystem::path> files = {};  // read for the questions and examples
};

// Loads known tasks and groups, users' task files (.json or .toml, task.h), and quizzes (.jsonl).
// Loads a task once even if it is in several groups. For a known task, reads the authors' files
// below `data`, or else files exported from the Hub. Throws UserError if a name is unknown
// (suggests the nearest one) or given twice, if a file is missing (lists the expected paths), or if
// a document is invalid (names its line).
std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names,
                                   const std::filesystem::path& data, std::optional<int64_t> limit,
                                   const TaskOptions& options = {});

// Returns the list of known tasks and groups that `moe eval --list` prints.
std::string task_list();

inline constexpr uint32_t kShotSeed = 1234;  // the harness's fewshot_random_seed

// Sampler of few-shot examples. All draws use one random number generator: to reproduce the draws
// of the harness, call prefix() once per document, in file order.
class ShotSampler {
 public:
  // `task` and `pool` must outlive the sampler. Throws UserError if `pool` has too few documents.
  ShotSampler(const Task& task, const std::vector<Document>& pool, int64_t count);

  // Returns the messages before the prompt of `document`: the description and the examples. Throws
  // UserError if the pool has too few documents other than `document`.
  Messages prefix(const OrderedJson& document);

 private:
  std::vector<size_t> draw(const OrderedJson& document);

  const Task& task_;
  const std::vector<Document>& pool_;
  int64_t count_;
  PythonRandom random_;
};

// Returns a few-shot example with its answer. Throws UserError, naming the document's file and
// line, if the document has no right answer.
Messages format_shot(const Task& task, const Document& document);

}  // namespace moe::eval
