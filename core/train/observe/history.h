#pragma once
// What the model wrote after held-out prompts, as RUN/samples.jsonl has it and as the report shows
// it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/curves.h"

namespace moe::train {

// Greedy text after a held-out prompt, with the weights after `step` steps.
struct TextSample {
  int64_t step = 0;
  std::string prompt, text;
};

// A line of samples.jsonl: {"step", "prompt", "text"}.
std::string line_of(const TextSample& sample);
std::optional<TextSample> read_sample(const Json& line);  // nothing: it is no line of ours

// The samples of a file, one by one; it ends where a line is broken or cut short. A file that is
// not there has none.
void for_each_sample(const std::filesystem::path& file,
                     const std::function<void(const TextSample&)>& on_sample);

// The samples of a run of any length in bounded memory: of each prompt the first, the last and some
// at equal distances between them.
class SampleHistory {
 public:
  void add(const TextSample& sample);  // steps ascend

  struct Prompt {
    std::string prompt;
    int64_t count = 0, stride = 1;  // of all samples those whose number the stride divides stay
    std::vector<TextSample> kept;
    TextSample last;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }  // in the order they came

  OrderedJson to_json() const;
  // UserError, opened by `where`: it is not what to_json() makes.
  static SampleHistory from_json(const Json& json, const std::string& where);

 private:
  std::vector<Prompt> prompts_;
};

// At most six of a prompt, the first and the last among them.
std::vector<const TextSample*> a_few(const SampleHistory::Prompt& prompt);

// Which numbers of metrics.jsonl a report draws, each in a panel of its own. A history keeps only
// these, so that its size does not depend on what else a line holds.

inline constexpr const char* kLossGroup = "Loss";
inline constexpr const char* kLearningGroup = "Learning";
inline constexpr const char* kRoutingGroup = "Routing, all layers";

// A panel of one curve of metrics.jsonl.
struct PanelSpec {
  const char* group;
  std::string title;
  const char* unit;
  const char* curve;
  double scale = 1;  // what values are multiplied by to be in `unit`
  bool from_zero = false, is_smoothed = false;
  bool is_loss = false;  // may be seen on a log scale, and begins after the warm-up
};

const std::vector<PanelSpec>& single_curve_panels();

// The task whose accuracy the curve "tasks/TASK/acc" is; empty where it is another curve.
std::string task_of_curve(const std::string& curve);

// Whether the curve of this name stands in a panel: one of the table, the losses, an accuracy.
bool is_drawn(const std::string& curve);

// All steps of a run as its report shows them, in bounded memory: fed the lines of metrics.jsonl
// and samples.jsonl one by one. Checkpoints keep it, so that a run that goes on need not read those
// files again.

class History {
 public:
  // UserError, opened by `where`: no step, or one that does not follow the one before.
  void add(const Json& line, const std::string& where);

  void add(const TextSample& sample) { samples_.add(sample); }

  // What panels.h says is drawn, by name in metrics.jsonl: "loss", "dropped_share", ..; accuracies
  // are "tasks/piqa/acc".
  const std::map<std::string, Downsampled>& curves() const { return curves_; }
  const LoadMap& loads() const { return loads_; }
  const SampleHistory& samples() const { return samples_; }
  const ReluStages& relu_stages() const { return relu_stages_; }

  OrderedJson to_json() const;
  // The same history, to go on with. UserError, opened by `where`: it is not what to_json() makes.
  static History from_json(const Json& json, const std::string& where);

  int64_t steps = 0;    // of the last line
  int64_t missing = 0;  // steps before it that no line was of
  int64_t total_tokens = 0;
  double seconds = 0;                               // of all steps, evaluation besides
  std::vector<int64_t> skipped;                     // the first of them
  int64_t skipped_count = 0, skipped_outliers = 0;  // the former counts both kinds

 private:
  void add_number(int64_t step, const std::string& name, const Json& value);

  bool is_begun_ = false;
  std::map<std::string, Downsampled> curves_;
  LoadMap loads_;
  SampleHistory samples_;
  ReluStages relu_stages_;
};

// The history of the run in the folder `run`, from its metrics.jsonl and its samples.jsonl.
// UserError: the former is missing, or a line of it is none of ours. A last line that was cut short
// is left out.
History read_history(const std::filesystem::path& run);

// RUN/starts.jsonl, the run history: one object each time the run began or went on, with what it
// ran on (run/run_start.h writes it). So the report knows it long after, and on another machine:
//   {"step", "time", "moe", "libtorch", "machine", "threads", "parameters", "router", "loss",
//    "layout", "data", "notes"}
// The objects up to one that is broken; none where there is no file.
std::vector<Json> read_run_history(const std::filesystem::path& file);

// The time now, as the run history and the report write it: "2026-01-31 12:05 UTC".
std::string time_text();

}  // namespace moe::train
