#pragma once
// Comparison with another run on the same questions: differences of means with paired tests.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/eval/report/task_report.h"

namespace moe::eval {

// The entries of a question in a sample log.
struct OtherAnswer {
  std::string target;
  std::map<std::string, double> values;  // by Metric::key()
};
using OtherTask = std::map<int64_t, OtherAnswer>;   // by doc_id
using OtherRun = std::map<std::string, OtherTask>;  // by task

// Reads the sample logs of `tasks` in `folder`, written by moe or by the harness
// (samples_TASK.jsonl, or samples_TASK_DATE.jsonl: the latest). Skips tasks without a log. Throws
// UserError if no task has a log, or for an invalid line.
OtherRun read_run(const std::filesystem::path& folder, const std::vector<std::string>& tasks);

struct ItemDifference {
  int64_t doc_id = 0;
  double ours = 0, theirs = 0;
};

struct Difference {
  std::string task, metric;
  int64_t questions = 0;                   // answered in both runs
  double ours = 0, theirs = 0;             // means over them
  double error = 0;                        // standard error of the paired difference
  bool is_binary = false;                  // every value is 0 or 1
  int64_t only_ours = 0, only_theirs = 0;  // binary: right in one run only
  // Two-sided p-value. Binary: McNemar's exact test on the questions that only one run got right.
  // Otherwise a normal test of the paired differences.
  double p = 1;
  std::vector<ItemDifference> items = {};  // questions whose values differ
};

// Compares the metrics that are means. Throws UserError if a question has another right answer in
// the other run.
std::vector<Difference> compare(const TaskReport& report, const OtherTask& other);

// Returns min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2).
double mcnemar(int64_t b, int64_t c);

std::string to_table(const std::vector<Difference>& differences);
std::string to_item_list(const std::vector<Difference>& differences);
OrderedJson to_json(const std::vector<Difference>& differences);

}  // namespace moe::eval
