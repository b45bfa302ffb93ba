#pragma once
// What an evaluation leaves behind, in lm-evaluation-harness' own forms: results.json,
// samples_TASK.jsonl, the table.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/metrics/metrics.h"
#include "core/eval/report/averages.h"
#include "core/eval/report/compare.h"
#include "core/eval/report/routing_stats.h"
#include "core/eval/report/task_report.h"
#include "core/eval/tasks/tasks.h"

namespace moe::eval {

// What is the same for every task of a run.
struct RunReport {
  std::string model;    // the folder
  OrderedJson upcycle;  // as what mixture it was taken (upcycle_request.h); null: as it is
  std::string dtype;
  int64_t window = 0;
  bool adds_bos = false;
  std::optional<int64_t> limit;
  std::string router;        // canonical form; empty for a dense model
  int64_t ep_ranks = 0;      // W
  int64_t group_tokens = 0;  // of a routing group (all ranks); 0 = scores do not depend on groups
  int64_t batch_tokens = 0;  // 0 = auto
  double seconds = 0;        // wall time of the scoring
  std::string device = "cpu";
  std::vector<TaskReport> tasks;
  std::optional<RoutingStats> routing = {};  // a mixture's; its tasks are those above
  Compat compat = Compat::kCurrent;
  std::vector<GroupAverage> groups = {};  // of the groups among --tasks
  std::vector<PaperTable> papers = {};    // those whose every column is there, or named in --tasks
  std::vector<Difference> against = {};   // beside another run
};

// Fills groups and papers from the tasks; `names` as the user gave them.
void add_averages(RunReport& report, const std::vector<std::string>& names);

OrderedJson results_json(const RunReport& report);
std::string samples_jsonl(const TaskReport& report);
// Task, version, examples, n, metric, value, standard error; then groups and papers.
std::string results_table(const RunReport& report);
// The files that write_report makes in `out`: results.json and one samples_TASK.jsonl a task.
std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks);
// Each file appears whole or not at all.
void write_report(const RunReport& report, const std::filesystem::path& out);

}  // namespace moe::eval
