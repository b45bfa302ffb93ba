#pragma once
// Held-out data of a run: their loss, and what the model writes after their first prompts.
//
// They are read and packed as the run reads and packs its own, in file order. Every token stands in
// one row and every target counts once: the last row of a stream is cut short instead of going on
// with the first example again. Rows go through the model as many at a time as in training, under
// the run's routing, so a router with a capacity meets groups of the size it trains with.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batches.h"
#include "core/data/token_cache.h"
#include "core/io/checkpoint.h"
#include "core/io/tokenizer/tokenizer.h"
#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"
#include "core/train/observe/history.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

class HeldOut {
 public:
  // Of a resolved run. UserError: what the readers say, rows without targets.
  HeldOut(const TrainSettings& settings, const io::Checkpoint& checkpoint, int64_t vocab_size,
          data::HostTokens* shared = nullptr);

  // Mean NLL of all targets, nats. Gradients, random numbers and the run's data stay as they are.
  double loss(const model::Llama& model, const model::RoutingOptions& routing) const;
  int64_t targets() const { return targets_; }

  // At most three, of up to 64 tokens; a router with a capacity runs dropless here.
  std::vector<TextSample> samples(const model::Llama& model, const model::RoutingOptions& routing,
                                  int64_t step) const;

  // "held out: a.jsonl: Alpaca records; 200 examples; 64 of 81 rows, 5120 targets"
  const std::string& description() const { return description_; }

 private:
  void take_prompts(const data::Examples& examples, int64_t longest);
  std::string text_of(const std::vector<int64_t>& ids) const;

  std::vector<data::Batch> batches_;
  int64_t targets_ = 0;
  std::vector<std::vector<int64_t>> prompts_;       // ids
  std::shared_ptr<const io::Tokenizer> tokenizer_;  // none: ids stand for text
  std::string description_;
};

struct RowsOnce {
  std::vector<data::Batch> batches;
  int64_t rows = 0, rows_there = 0;  // in the batches; in the files
};

// The rows of an epoch in file order, settings.rows a batch, at most `most_rows` (0 = all).
RowsOnce rows_once(const data::Examples& examples, data::BatchSettings settings, int64_t most_rows);

// Evaluation between two steps: held-out loss, samples of text and benchmarks, with the weights as
// they are then. Who trains asks; benchmarks are the caller's business.

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
