#include "core/train/observe/evaluator.h"

#include <chrono>

#include "core/base/error.h"

namespace moe::train {

Evaluator::Evaluator(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                     int64_t vocab_size, EvaluateTasks evaluate_tasks, data::HostTokens* shared)
    : settings_(settings.evaluation),
      steps_(*settings.steps),
      evaluate_tasks_(std::move(evaluate_tasks)) {
  if (!settings_.data.empty()) {
    held_out_.emplace(settings, checkpoint, vocab_size, shared);
  }
}

std::vector<std::string> Evaluator::description() const {
  std::vector<std::string> lines;
  if (held_out_) {
    lines.push_back(held_out_->description());
  }
  if (settings_.any()) {
    lines.push_back(fmt::format(
        "evaluates {}{}{} before the first step, every {} and at the end",
        held_out_ ? "held-out loss" : "", held_out_ && !settings_.tasks.empty() ? ", " : "",
        fmt::join(settings_.tasks, ", "),
        *settings_.every == 1 ? "step" : fmt::format("{} steps", *settings_.every)));
  }
  return lines;
}

std::optional<Evaluation> Evaluator::evaluate(const model::Llama& model,
                                              const model::RoutingOptions& routing,
                                              int64_t step) const {
  if (!is_due(step)) {
    return std::nullopt;
  }
  const auto start = std::chrono::steady_clock::now();
  Evaluation evaluation;
  evaluation.step = step;
  if (held_out_) {
    evaluation.held_out_loss = held_out_->loss(model, routing);
    evaluation.samples = held_out_->samples(model, routing, step);
  }
  if (!settings_.tasks.empty()) {
    MOE_CHECK(evaluate_tasks_);
    evaluation.tasks = evaluate_tasks_(model, routing);
  }
  evaluation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return evaluation;
}

}  // namespace moe::train
