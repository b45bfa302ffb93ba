#pragma once
// This run beside another one on the same questions: differences of means with paired tests.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/report/task_report.h"

namespace moe::eval {

// What a sample log says of a question: by metric, its value and the right answer.
struct OtherAnswer {
  std::string target;
  std::map<std::string, double> values;  // by Metric::key()
};
using OtherTask = std::map<int64_t, OtherAnswer>;   // by doc_id
using OtherRun = std::map<std::string, OtherTask>;  // by task

// The sample logs of `tasks` in `folder`, as this tool or the harness wrote them
// (samples_TASK.jsonl, or samples_TASK_DATE.jsonl: the last of them). Tasks without a log are left
// out. UserError: no log of any of them; a line that is none.
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
  bool is_binary = false;                  // every value 0 or 1
  int64_t only_ours = 0, only_theirs = 0;  // binary: right in one run alone
  // Two-sided. Binary: McNemar's exact test, the chance of so uneven a split of the questions that
  // only one run got right. Else a normal test of the paired differences.
  double p = 1;
  std::vector<ItemDifference> items = {};  // where the runs differ
};

// Of the metrics that are means. UserError: a question whose right answer is another one there.
std::vector<Difference> compare(const TaskReport& report, const OtherTask& other);

// min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2).
double mcnemar(int64_t b, int64_t c);

std::string to_table(const std::vector<Difference>& differences);
std::string to_item_list(const std::vector<Difference>& differences);
OrderedJson to_json(const std::vector<Difference>& differences);

}  // namespace moe::eval
