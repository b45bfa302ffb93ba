#pragma once
// Evaluation between two steps: held-out loss, samples of text and benchmarks, with the weights as
// they are then. Who trains asks; benchmarks are the caller's business.

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
            EvaluateTasks evaluate_tasks, data::HostTokens* shared = nullptr);

  // For people: what is held out and when it is looked at; nothing where nothing is evaluated.
  std::vector<std::string> description() const;

  bool is_due(int64_t step) const { return is_evaluation_due(settings_, step, steps_); }
  // What is due after `step` steps, or nothing.
  std::optional<Evaluation> evaluate(const model::Llama& model,
                                     const model::RoutingOptions& routing, int64_t step) const;

 private:
  EvaluationSettings settings_;
  int64_t steps_ = 0;
  std::optional<HeldOut> held_out_;
  EvaluateTasks evaluate_tasks_;
};

}  // namespace moe::train
