#pragma once
// Metrics of training steps and evaluations (counters: core/route/README.md), and the log files of
// a run, on rank 0. history.json of a checkpoint has the lengths of those files and the history in
// bounded size: the cost of resuming does not depend on the number of steps.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/io/file.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/observe/history.h"
#include "core/train/step/gradients.h"

namespace moe::train {

// One step; its losses and counters are those before the update.
struct StepRecord : StepLosses {
  int64_t step = 0;      // from 1
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t total_tokens = 0;  // since step 1
  double seconds = 0, tokens_per_second = 0;
  uint64_t peak_memory = 0;                 // maximum resident bytes since the process began
  std::optional<uint64_t> gpu_memory;       // maximum bytes of tensors on the GPU
  double data_wait_seconds = 0;             // part of `seconds`: waiting for the batches
  bool skipped = false;                     // true if the weights were not updated
  std::string skipped_kind, skipped_why;    // "not finite" or "outlier"; a description
  int64_t skipped_steps = 0;                // so far, of both kinds
  std::optional<int64_t> skipped_outliers;  // so far, if outliers are skipped
  int64_t steps_without_targets = 0;        // so far; they have no loss

  std::optional<double> auxiliary;                // weighted sum of the auxiliary losses
  std::optional<double> lambda, target_sparsity;  // ReLU: lambda of this step, S*
  std::optional<double> bias_max;  // largest |bias| of the router in this step's forward

  std::vector<int64_t> moe_layers;  // indices of the MoE layers
  int64_t row_bytes = 0;            // of one row sent between ranks
  route::CounterTotal total() const { return route::sum_layers(layers); }
};

// Task -> metric -> mean, and metric + "_stderr" -> standard error: "acc", "acc_stderr".
using TaskScores = std::map<std::string, std::map<std::string, double>>;

// Result of an evaluation after `step` steps; 0 is before the first.
struct Evaluation {
  int64_t step = 0;
  std::optional<double> held_out_loss;  // mean over the held-out targets, nats
  std::vector<TextSample> samples;      // continuations of held-out prompts
  TaskScores tasks;
  double seconds = 0;
};

// Returns the line of metrics.jsonl; for a mixture with the counters of core/route/counters.h,
// in total and in "layers".
OrderedJson to_json(const StepRecord& record);

// Adds held_out_loss, tasks and evaluation_seconds to the line of their step.
void add_evaluation(OrderedJson& line, const Evaluation& evaluation);

// Returns (tag, value) pairs for TensorBoard from a line of metrics.jsonl, without infinite values:
// train/loss, tasks/piqa/acc, layer_2/experts_per_token (at most four counters per layer).
std::vector<std::pair<std::string, double>> scalars(const Json& line);

// End of the event file when a checkpoint was saved.
struct EventMark {
  uint64_t bytes = 0;
  uint32_t sum = 0;    // last four bytes: the checksum of the last event
  double clock_s = 0;  // wall time of the last event
};

// RUN/events.out.tfevents.*: the scalars of a run for TensorBoard, as TFRecord frames of Event
// messages (tensorflow/core/util/event.proto), one per step. A resumed run appends to the file that
// the checkpoint recorded, or makes a new one from metrics.jsonl.
class EventFile {
 public:
  // Truncates the listed event file that matches `mark`, if any, and opens it for appending.
  static std::optional<EventFile> resume(const RunFolder& folder, const EventMark& mark);
  // Replaces the listed event files by a new one. Its clock starts `seconds` in the past, the total
  // duration of the steps that are appended next. Throws UserError if it cannot be written.
  EventFile(const RunFolder& folder, double seconds);

  // Appends an event. Throws UserError if the disk is full.
  void append(const Json& line);
  // Syncs the file to the disk. Thread-safe.
  void sync() const { io::sync(descriptor_, file_); }
  EventMark mark() const { return mark_; }

 private:
  EventFile() = default;
  void cut(const RunFolder& folder);
  void write(const std::string& event);

  std::filesystem::path file_;
  Descriptor descriptor_;
  EventMark mark_;  // the clock excludes the time between an interruption and the resumption
};

// State of the log between two steps.
struct LogState {
  LinesMark metrics, samples;
  EventMark events;
  History history;
};

// Writes CHECKPOINT/history.json.
void write_log_state(const LogState& state, const std::filesystem::path& checkpoint);
// Returns nothing if the checkpoint has none (an older version). Throws UserError if it is invalid.
std::optional<LogState> read_log_state(const std::filesystem::path& checkpoint);

// Log of a run: metrics.jsonl, samples.jsonl, the event file and the report.
class MetricsLog {
 public:
  // Continues the log of the run in `folder` after `steps` steps, from `checkpoint` ("": none).
  // Removes later steps, and adds to `notes` which steps are missing. `folder` outlives the log.
  MetricsLog(const RunFolder& folder, int64_t steps, const std::filesystem::path& checkpoint,
             std::vector<std::string>& notes);

  // Appends the line of a step. Adds the ends of both ReLU stages to the line of the step that ends
  // the sparsifying stage.
  void append(const OrderedJson& line, const std::vector<TextSample>& samples = {});
  const CollapseWatch& collapse() const { return history_.collapse(); }
  LogState state() const;
  // Syncs the files and the run's folder to the disk. Thread-safe.
  void sync() const;
  void report() const;  // rewrites report.html

 private:
  void read_metrics(int64_t steps, bool has_history, std::vector<std::string>& notes);
  void make_events();

  const RunFolder& folder_;
  StepLines metrics_, samples_;
  std::optional<EventFile> events_;  // set by the constructor
  History history_;
};

// Returns the learning rate of the last training step of a model folder: from the history.json of a
// checkpoint, the RUN/metrics.jsonl of a RUN/final, or the upcycle.json of a mixture made from one
// of these. Returns nothing if it is unknown or the file is damaged: only a warning depends on it.
std::optional<double> last_learning_rate(const std::filesystem::path& model);

}  // namespace moe::train
