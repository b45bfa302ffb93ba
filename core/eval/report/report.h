#pragma once
// Output of an evaluation in the formats of lm-evaluation-harness: results.json,
// samples_TASK.jsonl, and the table.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/report/compare.h"
#include "core/eval/report/routing_stats.h"

namespace moe::eval {

struct RunReport {
  std::string model;    // path of the folder
  OrderedJson upcycle;  // --upcycle options (upcycle_request.h); null without --upcycle
  std::string dtype;
  int64_t window = 0;
  bool adds_bos = false;
  std::optional<int64_t> limit;
  std::string router;        // canonical form; empty for a dense model
  int64_t ep_ranks = 0;      // W
  int64_t group_tokens = 0;  // tokens of a routing group over all W ranks; 0: no capacity
  int64_t batch_tokens = 0;  // 0: auto
  double seconds = 0;        // wall time of the scoring
  std::string device = "cpu";
  std::vector<TaskReport> tasks;
  std::optional<RoutingStats> routing = {};  // of these tasks; empty for a dense model
  Compat compat = Compat::kCurrent;
  OrderedJson prompt_form = OrderedJson::object();  // keys of results.json: chat_template, ..
  std::vector<GroupAverage> groups = {};            // of the groups in --tasks
  std::vector<PaperTable> papers = {};              // complete tables, and those named in --tasks
  std::vector<Difference> against = {};             // from the run of --against
};

// Computes report.groups and report.papers from report.tasks. `names`: values of --tasks.
void add_averages(RunReport& report, const std::vector<std::string>& names);

OrderedJson results_json(const RunReport& report);

// Returns one JSON line per filter and question, as in the sample logs of the harness. doc_hash
// equals the harness's hash of json.dumps(doc, indent=2, ensure_ascii=False), except for floats.
std::string samples_jsonl(const TaskReport& report);

// Returns the table of tasks and groups, the papers' tables, and the comparison with --against.
std::string results_table(const RunReport& report);

// Returns the files that write_report() writes to `out`.
std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks);
// Writes each file atomically. Throws UserError if `out` cannot be created.
void write_report(const RunReport& report, const std::filesystem::path& out);

}  // namespace moe::eval
