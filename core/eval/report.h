#pragma once
// What an evaluation leaves behind, in lm-evaluation-harness' own forms: results.json,
// samples_TASK.jsonl, the table.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/compare.h"
#include "core/eval/groups.h"
#include "core/eval/metrics.h"
#include "core/eval/paper_tables.h"
#include "core/eval/routing_stats.h"
#include "core/eval/tasks.h"

namespace moe::eval {

struct TaskReport {
  LoadedTask loaded;
  std::vector<std::vector<Score>> scores;  // [question][choice]; empty where answers are written
  std::vector<std::string> answers = {};   // [question], written
  std::map<std::string, std::vector<double>> values = {};  // by Metric::key(), one a question
  std::map<std::string, Mean> metrics = {};                // by Metric::key()
  Scores run = {};          // counters and forwards (its scores are moved into `scores`)
  int64_t cut_choices = 0;  // longer than the window: scored by their end
  int64_t questions() const { return static_cast<int64_t>(loaded.questions.size()); }
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
  int64_t batch_tokens = 0;  // 0 = auto
  double seconds = 0;        // wall time of the scoring
  std::string device = "cpu";
  std::vector<TaskReport> tasks;
  std::optional<RoutingStats> routing = {};  // a mixture's; its tasks are those above
  Compat compat = Compat::kCurrent;
  std::vector<GroupAverage> groups = {};  // of the groups asked for
  std::vector<PaperTable> papers = {};    // those whose every column is there, or asked for
  std::vector<Difference> against = {};   // beside another run
};

// Sums `scores` of a task's requests back into questions and means. `resamples`: bootstrap samples
// of a perplexity's standard error, 0 = none.
TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples = 100000);
// The same of written answers.
TaskReport make_written_report(LoadedTask loaded, std::vector<std::string> answers);
// What a filter of the task makes of a written answer.
std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer);
// A metric's value of a written answer.
double judge_answer(const LoadedTask& loaded, const Metric& metric, size_t question,
                    const std::string& answer);

// Fills groups and papers from the tasks; `names` as the user gave them.
void add_averages(RunReport& report, const std::vector<std::string>& names);

OrderedJson results_json(const RunReport& report);
std::string samples_jsonl(const TaskReport& report);
// Task, version, examples, n, metric, value, standard error; then groups and papers.
std::string results_table(const RunReport& report);
double drop_rate(
    const TaskReport& report);  // dropped requests / requests over all MoE layers, 0..1

// The files that write_report makes in `out`: results.json and one samples_TASK.jsonl a task.
std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks);
// UserError when one of `files` is there and not `force`, or when their folder is a file or
// may not be written. `flag` is what messages name.
void check_output(const std::vector<std::filesystem::path>& files, bool force,
                  const std::string& flag = "-o");
// `file` appears whole or not at all; its folder is there.
void write_whole(const std::filesystem::path& file, const std::string& text);
// Each file appears whole or not at all.
void write_report(const RunReport& report, const std::filesystem::path& out);

}  // namespace moe::eval
