#pragma once
// Evaluation between two steps: held-out loss, samples of text and benchmarks, with the weights as
// they are then. Who trains asks; benchmarks are the caller's business.

#include <filesystem>
#include <functional>
#include <optional>

#include "core/train/observe/held_out.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

// Accuracies of the live model under the run's routing.
using EvaluateTasks =
    std::function<TaskScores(const model::Llama& model, const model::RoutingOptions& routing)>;

class Evaluator {
 public:
  // Of a resolved run. UserError: what HeldOut says.
  Evaluator(const TrainSettings& settings, const io::Checkpoint& checkpoint, int64_t vocab_size,
            EvaluateTasks evaluate_tasks);

  // For people: what is held out and when it is looked at; nothing where nothing is evaluated.
  std::vector<std::string> description() const;

  // A run goes on after `step`: samples of later steps leave `samples_file`.
  void begin(const std::filesystem::path& samples_file, int64_t step);

  bool is_due(int64_t step) const { return is_evaluation_due(settings_, step, steps_); }
  // What is due after `step` steps, or nothing. Samples go to the file that begin() was told of.
  std::optional<Evaluation> evaluate(const model::Llama& model,
                                     const model::RoutingOptions& routing, int64_t step) const;

 private:
  void write(const std::vector<TextSample>& samples) const;

  EvaluationSettings settings_;
  int64_t steps_ = 0;
  std::optional<HeldOut> held_out_;
  EvaluateTasks evaluate_tasks_;
  std::filesystem::path samples_file_;
};

// The samples of a file that begin() keeps: lines {"step", "prompt", "text"}; it ends where a line
// is broken or cut short. A file that is not there has none.
std::vector<TextSample> read_samples_file(const std::filesystem::path& file);

}  // namespace moe::train
