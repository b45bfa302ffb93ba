#pragma once
// History of a run in bounded memory, read from the lines of metrics.jsonl and samples.jsonl.
// Checkpoints contain it (history.json), so that a resumed run does not read those files again.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/io/file.h"
#include "core/train/observe/curves.h"

namespace moe::train {

// Greedy continuation of a held-out prompt by the model after `step` steps.
struct TextSample {
  int64_t step = 0;
  std::string prompt, text;
};

std::string to_line(const TextSample& sample);  // of samples.jsonl: {"step", "prompt", "text"}
std::optional<TextSample> read_sample(const Json& line);  // nothing if `line` is not a sample

// Samples of a run in bounded memory: for each prompt the first, the last, and some between them.
class SampleHistory {
 public:
  void add(const TextSample& sample);  // steps ascend

  struct Prompt {
    std::string prompt;
    int64_t count = 0, stride = 1;
    std::vector<TextSample> kept;  // the samples whose index is a multiple of the stride
    TextSample last;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }  // in the order of appearance

  OrderedJson to_json() const;
  // Throws UserError, prefixed with `where`, if `json` is not from to_json().
  static SampleHistory from_json(const Json& json, const std::string& where);

 private:
  std::vector<Prompt> prompts_;
};

// Returns at most six samples of a prompt, including the first and the last.
std::vector<const TextSample*> select_samples(const SampleHistory::Prompt& prompt);

inline constexpr const char* kLossGroup = "Loss";
inline constexpr const char* kLearningGroup = "Learning";
inline constexpr const char* kRoutingGroup = "Routing, all layers";

// A panel of the report that shows one number of metrics.jsonl.
struct PanelSpec {
  std::string group, title, unit;
  std::string curve;  // name in metrics.jsonl
  double scale = 1;   // factor from the curve to `unit`
  bool from_zero = false, is_smoothed = false;
  bool is_loss = false;  // log scale on request, initial view begins after the warm-up
};

const std::vector<PanelSpec>& single_curve_panels();

// Returns the task of the accuracy curve "tasks/TASK/acc"; "" for other curves.
std::string task_name(const std::string& curve);

class History {
 public:
  // Adds a line of metrics.jsonl; ignores other values of a wrong type. Throws UserError, prefixed
  // with `where`, if the line has no step, or one that does not follow the step before.
  void add(const Json& line, const std::string& where);

  void add(const TextSample& sample) { samples_.add(sample); }

  // Returns the curves that the report draws, by name in metrics.jsonl ("loss", "dropped_share");
  // accuracies are "tasks/piqa/acc".
  const std::map<std::string, Downsampled>& curves() const { return curves_; }
  // Returns a curve; null if no line has it.
  const Downsampled* find_curve(const std::string& name) const {
    const auto curve = curves_.find(name);
    return curve == curves_.end() ? nullptr : &curve->second;
  }
  const LoadMap& loads() const { return loads_; }
  const SampleHistory& samples() const { return samples_; }
  const ReluStages& relu_stages() const { return relu_stages_; }
  const CollapseWatch& collapse() const { return collapse_; }

  OrderedJson to_json() const;
  // Throws UserError, prefixed with `where`, if `json` is not from to_json().
  static History from_json(const Json& json, const std::string& where);

  int64_t steps = 0;    // of the last line
  int64_t missing = 0;  // number of steps before it without a line
  int64_t total_tokens = 0;
  double seconds = 0;                               // of all steps and evaluations
  std::vector<int64_t> skipped;                     // the first skipped steps
  int64_t skipped_count = 0, skipped_outliers = 0;  // skipped_count includes skipped_outliers
  int64_t steps_without_targets = 0;                // without a loss

 private:
  void add_number(int64_t step, const std::string& name, const Json& value);

  bool has_lines_ = false;
  std::map<std::string, Downsampled> curves_;
  LoadMap loads_;
  SampleHistory samples_;
  ReluStages relu_stages_;
  CollapseWatch collapse_;
};

// Reads metrics.jsonl and samples.jsonl of the folder `run`, without an unfinished last line.
// Throws UserError if metrics.jsonl is missing or has an invalid line.
History read_history(const std::filesystem::path& run);

// Returns the objects of RUN/starts.jsonl, one per start or resumption (append_start() of
// loop/plan.cpp), up to the first invalid one; none if there is no file.
std::vector<Json> read_run_history(const std::filesystem::path& file);

// Returns the current time as in starts.jsonl and the report: "2026-01-31 12:05 UTC".
std::string time_text();

// Opens `file` for reading and appending; `flags` are added to those of open(2). Throws UserError
// if the file cannot be written, or is a symbolic link, which could lead out of the run's folder.
Descriptor open_to_append(const std::filesystem::path& file, int flags);
// Truncates an open file to `bytes`. `file` names it in errors.
void truncate(const Descriptor& descriptor, uint64_t bytes, const std::filesystem::path& file);
// Opens or creates `file` by open_to_append(), and truncates an unfinished last line.
Descriptor open_lines(const std::filesystem::path& file);

// End of the lines of a file when a checkpoint was saved.
struct LinesMark {
  uint64_t bytes = 0;
  int64_t step = -1;  // of the last line; -1: none
};

enum class LinesPerStep { kOne, kAny };

// An append-only file of JSON lines, each with its "step", in ascending order.
class StepLines {
 public:
  // Throws the exceptions of open_lines().
  StepLines(std::filesystem::path file, LinesPerStep per_step);

  // Truncates the file at `mark`. Returns false and changes nothing if no line of that step ends
  // there. Reads only that line.
  bool cut_at(const LinesMark& mark);
  // Removes lines that are invalid, do not ascend, or are of later steps than `steps`. Calls
  // `on_line` for each remaining line. Returns the number of lines removed between remaining ones;
  // if there are any, the file is rewritten.
  int64_t keep_steps(int64_t steps, const std::function<void(const Json&)>& on_line);

  // Appends a JSON object of `step` without line breaks. Throws UserError if the disk is full.
  void append(std::string_view text, int64_t step);
  // Syncs the file to the disk. Thread-safe.
  void sync() const { io::sync(descriptor_, file_); }
  LinesMark mark() const { return mark_; }

 private:
  void cut(const LinesMark& mark);

  std::filesystem::path file_;
  LinesPerStep per_step_;
  Descriptor descriptor_;
  LinesMark mark_;
};

}  // namespace moe::train
