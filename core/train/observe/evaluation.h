#pragma once
// Evaluation between two steps: held-out loss, text samples and benchmarks.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batches.h"
#include "core/data/token_cache.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/llama.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/config/settings.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

// Held-out data, read and packed like the training data, in file order. Each target counts once:
// the last row of a packed stream is shortened. Forward passes have as many rows as in training,
// and use the run's routing: routing groups have equal size.
class HeldOut {
 public:
  // Requires resolved settings. Throws UserError if a file is invalid or the rows have no targets.
  HeldOut(const TrainSettings& settings, const io::Checkpoint& checkpoint, int64_t vocab_size,
          data::HostTokens* shared = nullptr);

  // Returns the mean NLL of all targets, in nats. Does not change gradients, random state or the
  // order of the training data.
  double loss(const model::Llama& model, const model::RoutingOptions& routing) const;
  int64_t targets() const { return targets_; }

  // Returns at most three samples of up to 64 tokens. A router with a capacity runs dropless.
  std::vector<TextSample> samples(const model::Llama& model, const model::RoutingOptions& routing,
                                  int64_t step) const;

  // Returns "held out: a.jsonl: Alpaca records; 200 examples; 64 of 81 rows, 5120 targets".
  const std::string& description() const { return description_; }

 private:
  void select_prompts(const data::Examples& examples, int64_t max_tokens);
  std::string decode(const std::vector<int64_t>& ids) const;

  std::vector<data::Batch> batches_;
  int64_t targets_ = 0;
  std::vector<std::vector<int64_t>> prompts_;       // token ids
  std::shared_ptr<const io::Tokenizer> tokenizer_;  // null: ids are printed
  std::string description_;
};

struct SingleEpochRows {
  std::vector<data::Batch> batches;
  int64_t rows = 0, available_rows = 0;  // in the batches; in the files
};

// Returns at most `max_rows` rows (0: all) of one epoch in file order, in batches of settings.rows.
SingleEpochRows single_epoch_rows(const data::Examples& examples, data::BatchSettings settings,
                                  int64_t max_rows);

// Computes the scores of a model under the run's routing.
using EvaluateTasks =
    std::function<TaskScores(const model::Llama& model, const model::RoutingOptions& routing)>;

// Evaluations of a run. The constructor requires resolved settings and throws the exceptions of
// HeldOut.
class Evaluator {
 public:
  Evaluator(const TrainSettings& settings, const io::Checkpoint& checkpoint, int64_t vocab_size,
            EvaluateTasks evaluate_tasks, data::HostTokens* shared = nullptr);

  // Returns lines that describe the evaluations; none if there are none.
  std::vector<std::string> description() const;

  bool is_due(int64_t step) const { return settings_.is_due(step, steps_); }
  Evaluation evaluate(const model::Llama& model, const model::RoutingOptions& routing,
                      int64_t step) const;

 private:
  EvaluationSettings settings_;
  int64_t steps_ = 0;
  std::optional<HeldOut> held_out_;
  EvaluateTasks evaluate_tasks_;
};

}  // namespace moe::train
