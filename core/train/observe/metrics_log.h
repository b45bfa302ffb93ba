#pragma once
// What a run writes of its steps: metrics.jsonl, samples.jsonl, the same for TensorBoard,
// report.html. One process of a run keeps it. A checkpoint holds, as history.json, how far those
// files went when it was saved, and the history of the run in bounded size, so that going on costs
// the same after a million steps as after ten.

#include "core/train/observe/event_file.h"
#include "core/train/observe/history.h"
#include "core/train/observe/metrics.h"
#include "core/train/observe/step_lines.h"
#include "core/train/run/run_folder.h"

namespace moe::train {

// The log between two steps.
struct LogState {
  LinesMark metrics, samples;
  EventMark events;
  History history;
};

// CHECKPOINT/history.json.
void write_log_state(const LogState& state, const std::filesystem::path& checkpoint);
// Nothing where the checkpoint has none (one of an older version). UserError: it is none of ours.
std::optional<LogState> read_log_state(const std::filesystem::path& checkpoint);

class MetricsLog {
 public:
  // Goes on behind the first `steps` steps of the run in `folder`, which outlives it, from
  // `checkpoint` (empty: from none). What its files tell of later steps is cut off. Lines of
  // earlier ones stay; `notes` is told which are missing.
  MetricsLog(const RunFolder& folder, int64_t steps, const std::filesystem::path& checkpoint,
             std::vector<std::string>& notes);

  void append(const OrderedJson& line, const std::vector<TextSample>& samples = {});
  LogState state() const;
  // All that was appended is on the disk when it returns, and so are the names in the run's folder.
  // Any thread may call it.
  void sync() const;
  void report() const;  // writes the page anew

 private:
  void read_metrics(int64_t steps, bool has_history, std::vector<std::string>& notes);
  void make_events();

  const RunFolder& folder_;
  StepLines metrics_, samples_;
  std::optional<EventFile> events_;  // always there when it is made
  History history_;
};

}  // namespace moe::train
