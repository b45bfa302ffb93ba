#pragma once
// Held-out data of a run: their loss, and what the model writes after their first prompts.
//
// They are read and packed as the run reads and packs its own, in file order. Every token stands in
// one row and every target counts once: the last row of a stream is cut short instead of going on
// with the first example again. Rows go through the model as many at a time as in training, under
// the run's routing, so a router with a capacity meets groups of the size it trains with.

#include <memory>
#include <string>
#include <vector>

#include "core/data/batches.h"
#include "core/data/token_cache.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/llama.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/observe/text_samples.h"
#include "core/train/run/settings.h"

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

}  // namespace moe::train
