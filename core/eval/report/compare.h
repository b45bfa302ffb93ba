#pragma once
// Comparison of the current run ("ours") with the run of --against ("theirs") on the same
// questions: differences of means with paired tests.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/eval/report/task_report.h"

namespace moe::eval {

// The result of a question in the sample log of the other run.
struct OtherAnswer {
  std::string target;                    // right answer
  std::map<std::string, double> values;  // by Metric::key()
  std::string prompt_hash = {};          // empty: not known
};
using OtherTask = std::map<int64_t, OtherAnswer>;   // by doc_id
using OtherRun = std::map<std::string, OtherTask>;  // by task

// Reads the sample logs of `tasks` below `folder`, of moe (samples_TASK.jsonl) or the harness
// (samples_TASK_DATE.jsonl, the latest). Throws UserError if there is none, or a line is invalid.
OtherRun read_run(const std::filesystem::path& folder, const std::vector<std::string>& tasks);

struct ItemDifference {
  int64_t doc_id = 0;
  double ours = 0, theirs = 0;
};

struct Difference {
  std::string task, metric;
  int64_t questions = 0;                   // number of questions answered in both runs
  double ours = 0, theirs = 0;             // means over these questions
  double error = 0;                        // standard error of the paired difference
  bool is_binary = false;                  // every value is 0 or 1
  int64_t only_ours = 0, only_theirs = 0;  // binary: right in one run only
  double p = 1;  // two-sided: McNemar's exact test if is_binary, else a paired normal test
  int64_t other_prompts = 0;               // questions whose prompts differ
  std::vector<ItemDifference> items = {};  // questions whose values differ
};

// Compares each metric that is a mean. Throws UserError if the right answers of a question differ.
std::vector<Difference> compare(const TaskReport& report, const OtherTask& other);

// Returns min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2).
double mcnemar(int64_t b, int64_t c);

std::string to_table(const std::vector<Difference>& differences);
std::string to_item_list(const std::vector<Difference>& differences);
OrderedJson to_json(const std::vector<Difference>& differences);

}  // namespace moe::eval
