#pragma once
// All steps of a run as its report shows them, in bounded memory: fed the lines of metrics.jsonl
// and samples.jsonl one by one. Checkpoints keep it, so that a run that goes on need not read those
// files again.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/downsampled.h"
#include "core/train/observe/load_map.h"
#include "core/train/observe/relu_stages.h"
#include "core/train/observe/text_samples.h"

namespace moe::train {

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
