#pragma once
// Tasks of users, known tasks, and groups of known tasks. A task defines the files of its
// documents, the functions that turn a document into a question, and the metrics.
//
// A user's task is a JSON or TOML file with the keys of the harness's task files:
//
//   task = "capitals"                           # default: the name of this file
//   data = "capitals.jsonl"                     # JSON lines, Parquet, or CSV or TSV with a header,
//                                               # plain, .gz or .zst; the path is relative to this
//                                               # file
//   fewshot_data = "capitals_train.jsonl"       # documents for --num-fewshot
//   output_type = "multiple_choice"             # or "loglikelihood", "generate_until"
//   description = ""                            # text before the few-shot examples
//   doc_to_text = "Question: {{question}}\nAnswer:"
//   doc_to_choice = ["{{a}}", "{{b}}"]          # one template per choice; or "{{choices}}", a
//                                               # field with a list of choices
//   doc_to_target = "{{label}}"                 # index of the right choice from 0, or its text
//   metric_list = ["acc", "acc_norm"]
//   target_delimiter = " "                      # between prompt and choice; a loglikelihood task
//                                               # has it in doc_to_target instead
//   fewshot_delimiter = "\n\n"                  # after each example
//   gen_prefix = "The answer is"                # beginning of the answer, after the prompt
//   num_fewshot = 0
//   fewshot_sampler = "default"                 # or "first_n"
//   until = ["\n"]                              # generate_until: stop words
//   max_gen_toks = 256
//   ignore_case = false                         # exact_match ignores case and punctuation (BBH)
//   version = 1.0
//
// The known tasks and groups are defined in known/*.toml, which CMake compiles into the binary. A
// file defines a family of tasks:
//
//   tasks      one entry of settings per task; the file's other keys are settings of all its tasks
//   forms      further settings, optional: each form is combined with each entry of "tasks" that
//              has the key named by the form's "needs"
//   variables  names of keys of an entry: "<name>" in any text is replaced by the value of the key,
//              "<name in words>" by the value with spaces for underscores; a list of values gives
//              one task per value
//   groups     groups of tasks. A task joins the group named by its "group"; or a group lists its
//              "tasks"
//
// Known tasks have further keys:
//
//   dataset_path, origin      # data set on the Hub; source of the authors' own files
//   fields                    # fields on the Hub: "question", "idx: any", "label: no | yes"
//   reader                    # name of a function of documents.h (prompt_template.h)
//   process_docs              # "hellaswag": process_hellaswag()
//   data = {split, files}     # each entry of files is an alternative, relative to --data; "a + b"
//                             # means two files that are read together
//   documents                 # number of documents that the harness scores; 0: not checked
//   extract                   # filter of the metric exact_match,flexible-extract
//   in_0_4_1 = {..}           # keys that differ in version 0.4.1 of the harness
//   not_in_0_4_1 = "why"      # reason why version 0.4.1 has no such task
//   alias, fewshot_excludes_question, fewshot_fixed, gold_may_be_absent, choices_are_contexts:
//                             # see Task and ShotRule

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/tasks/prompt_template.h"

namespace moe::eval {

// One of the alternative file layouts of a split.
struct FileLayout {
  std::vector<std::string> files;  // '*' matches any characters; also found as .gz and .zst
  DocumentReader read;
};

struct Split {
  std::string name = {};                 // on the Hub: "test", "validation", "train", "dev"
  std::vector<FileLayout> layouts = {};  // the authors' files, in order of precedence
};

struct DataSet {
  std::string hub = {};     // data set and configuration on the Hub
  std::string origin = {};  // source of the authors' own files
  Schema schema = {};       // the Hub's fields, in order; if empty, no Hub export is read
  Split scored = {};
  Split shots = {};                                // the documents of few-shot examples
  std::function<void(OrderedJson&)> process = {};  // the harness's process_docs; may be empty
};

// How few-shot examples are drawn.
struct ShotRule {
  enum class Sampler { kRandom, kFirst };
  Sampler sampler = Sampler::kRandom;
  bool excludes_question = false;  // skip the question itself if the pool contains it
  int64_t count = 0;               // default of --num-fewshot
  bool fixed = false;              // --num-fewshot has no effect
};

// Version of lm-evaluation-harness whose task definitions and defaults are used.
enum class Compat { kCurrent, k041 };
const char* to_string(Compat compat);

enum class OutputType { kMultipleChoice, kLogLikelihood, kGenerateUntil };
const char* to_string(OutputType type);

// A filter of generated answers.
struct AnswerFilter {
  std::string name = {};  // "strict-match"
  std::function<std::string(const std::string& answer, const OrderedJson& document)> apply = {};
};

struct Task {
  std::string name = {};
  std::string alias = {};              // name in tables; empty: `name`
  std::optional<double> version = {};  // of the definition
  OutputType output = OutputType::kMultipleChoice;
  DataSet data = {};
  int64_t harness_items = 0;  // documents that the harness scores; 0: not checked
  std::string description = {};
  std::function<std::string(const OrderedJson&)> prompt = {};
  std::function<std::vector<std::string>(const OrderedJson&)> choices = {};
  std::function<Target(const OrderedJson&)> target = {};
  std::vector<Metric> metrics = {};
  std::string delimiter = " ";          // between prompt and choice
  std::string shot_delimiter = "\n\n";  // after an example
  std::string gen_prefix = {};          // template of the beginning of an answer
  std::function<std::string(const OrderedJson&)> answer_begin = {};  // from gen_prefix
  ShotRule shots = {};
  // The choices are alternative contexts, and the target is the continuation of each (Winogrande).
  // In the file, doc_to_text is the index of the right one.
  bool choices_are_contexts = false;
  bool is_user_defined = false;  // paths of the data are not relative to --data
  // Accept a target that is not one of the choices; the question counts as wrong.
  bool gold_may_be_absent = false;
  Generation generation = {};
  std::vector<AnswerFilter> filters = {};     // Metric::filter selects one by name
  bool ignores_case_and_punctuation = false;  // in exact_match (filters.h)
  std::string not_in_0_4_1 = {};  // reason why version 0.4.1 lacks the task; empty: it has it
};

// Version of lm-evaluation-harness that the files of known/ reproduce.
inline constexpr const char* kHarnessVersion = "0.4.13";

// Reads a user's task file. Throws UserError if a key is unknown or missing, a template is invalid,
// or a metric is unknown.
Task read_user_task(const std::filesystem::path& file);

// Returns the task of a quiz file (read_quiz()), named after the file.
Task read_quiz_task(const std::filesystem::path& file);

// Returns a task of known/ as defined in version `compat` of the harness. The variables in
// `settings` must already be replaced by their values.
Task make_known_task(Json settings, Compat compat);

struct Group {
  std::string name;
  std::vector<std::string> members;  // tasks and groups
  std::string about;
  std::string metric = {};      // Metric::key() of the metric to average; empty: no average
  std::string version = "N/A";  // of the definition in the harness
  std::string alias = {};
};

// Returns the known tasks as defined in that version of the harness.
const std::vector<Task>& known_tasks(Compat compat = Compat::kCurrent);
const std::vector<Group>& known_groups();
const Group* find_group(const std::string& name);  // null if unknown

// Returns the tasks of a group and its subgroups, without duplicates.
std::vector<std::string> group_tasks(const Group& group);

// Returns the groups among `names` and their subgroups, without duplicates.
std::vector<std::string> groups_among(const std::vector<std::string>& names);

struct KnownFile {
  std::string_view name, text;
};
// Returns the files of known/. Defined in a source file generated by cmake/embed.cmake.
std::vector<KnownFile> known_files();

}  // namespace moe::eval
