#pragma once
// What an evaluation leaves behind, in lm-evaluation-harness' own forms: results.json,
// samples_TASK.jsonl, the table.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/metrics.h"
#include "core/eval/routing_stats.h"

namespace moe::eval {

struct TaskReport {
  LoadedTask loaded;
  std::vector<std::vector<Score>> scores;  // [question][choice]
  std::map<std::string, Mean> metrics;     // "acc", "acc_norm"
  Scores run;               // counters and forwards (its scores are moved into `scores`)
  int64_t cut_choices = 0;  // longer than the window: scored by their end
};

// What is the same for every task of a run.
struct RunReport {
  std::string model;  // the folder
  std::string dtype;
  int64_t window = 0;
  bool adds_bos = false;
  std::optional<int64_t> limit;
  std::string router;    // canonical form; empty for a dense model
  int64_t ep_ranks = 0;  // W
  int64_t group_tokens =
      0;  // tokens of a routing group (all ranks); 0 = scores do not depend on groups
  int64_t batch_tokens = 0;
  double seconds = 0;  // wall time of the scoring
  std::vector<TaskReport> tasks;
  std::optional<RoutingStats> routing = {};  // a mixture's; its tasks are those above
};

// Sums `scores` of a task's requests back into questions and means.
TaskReport make_task_report(LoadedTask loaded, Scores run);

OrderedJson results_json(const RunReport& report);
std::string samples_jsonl(const TaskReport& report);
std::string results_table(const RunReport& report);  // task, version, n, metric, value, stderr
double drop_rate(
    const TaskReport& report);  // dropped requests / requests over all MoE layers, 0..1

// The files that write_report makes in `out`: results.json and one samples_TASK.jsonl a task.
std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks);
// UserError when one of `files` is there and not `force`, or when their folder is a file or
// may not be written. `flag` is what messages name.
void check_output(const std::vector<std::filesystem::path>& files,
                  bool force,
                  const std::string& flag = "-o");
// `file` appears whole or not at all; its folder is there.
void write_whole(const std::filesystem::path& file, const std::string& text);
// Each file appears whole or not at all.
void write_report(const RunReport& report, const std::filesystem::path& out);

}  // namespace moe::eval
