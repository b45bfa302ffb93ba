#pragma once
// What one step of training says of itself, and its line in metrics.jsonl (../README.md,
// and core/route/README.md for the counters).

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/counters.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/observe/event_file.h"
#include "core/train/observe/history.h"
#include "core/train/observe/step_lines.h"

namespace moe::train {

struct StepRecord {
  int64_t step = 0;  // from 1
  double loss =
      0;  // language-model loss, mean over target tokens of the global batch, before the step
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0, target_tokens = 0;  // of this global batch
  int64_t total_tokens = 0;               // since step 1
  double seconds = 0, tokens_per_second = 0;
  uint64_t peak_memory = 0;                 // bytes resident at most, since the process began
  std::optional<uint64_t> gpu_memory;       // bytes of tensors on the GPU at most, where one is
  double data_wait_seconds = 0;             // of `seconds`: until the step had its batches
  bool skipped = false;                     // the weights stayed as they were
  std::string skipped_kind, skipped_why;    // "not finite" or "outlier" (outliers.h); in words
  int64_t skipped_steps = 0;                // so far, of both kinds
  std::optional<int64_t> skipped_outliers;  // of these, where outliers are looked for

  // Unscaled, summed over layers; only what the router has.
  std::optional<double> load_balance_loss, entropy_loss, l1_loss;
  std::optional<double> z_loss, sequence_balance_loss;  // where they are in force
  std::optional<double>
      auxiliary;  // what was added to the loss: the above times their coefficients
  std::optional<double> lambda, sparsity;  // ReLU: lambda of this step, its S
  std::optional<double> target_sparsity;   // and S*
  std::optional<double> bias_max;  // the largest |bias| of the choice in this step's forward

  std::vector<int64_t> moe_layers;                   // numbers of the MoE layers
  std::vector<route::CounterValues> layer_counters;  // one each
  int64_t row_bytes = 0;  // of one row between ranks: D x bytes of a number
  route::CounterTotal total() const;
};

// Task -> "acc", "acc_stderr", "acc_norm", ...: accuracies and their standard errors, 0..1.
using TaskScores = std::map<std::string, std::map<std::string, double>>;

// What an evaluation found, with the weights after `step` steps; 0 is before the first.
struct Evaluation {
  int64_t step = 0;
  std::optional<double> held_out_loss;  // mean over the held-out targets, nats
  std::vector<TextSample> samples;      // after held-out prompts
  TaskScores tasks;
  double seconds = 0;
};

// The step's numbers by name; for a mixture also the counters of core/route/counters_json.h, as a
// total and in "layers".
OrderedJson to_json(const StepRecord& record);

// held_out_loss, tasks and evaluation_seconds, put on the line of their step.
void add_evaluation(OrderedJson& line, const Evaluation& evaluation);

// What a run writes of its steps: metrics.jsonl, samples.jsonl, the same for TensorBoard,
// report.html. One process of a run keeps it. A checkpoint holds, as history.json, how far those
// files went when it was saved, and the history of the run in bounded size, so that going on costs
// the same after a million steps as after ten.

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

// The learning rate of the last step that a model folder was trained with, where moe knows it: a
// run that goes on far above it unlearns (core/train/loop/plan.h).

// Of a checkpoint (its history.json), of RUN/final (the last line of RUN/metrics.jsonl), or of a
// mixture that was made of either (its upcycle.json). Nothing where none of them says it, and where
// the file is damaged: what is said for people alone stops no run.
std::optional<double> last_learning_rate(const std::filesystem::path& model);

}  // namespace moe::train
