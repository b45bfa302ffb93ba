#pragma once
// What one step of training says of itself, and its line in metrics.jsonl (DESIGN section 2, SPEC
// section 13).

#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "core/base/json.h"
#include "core/route/counters.h"

namespace moe::train {

struct StepRecord {
  int64_t step = 0;  // from 1
  double loss =
      0;  // language-model loss, mean over target tokens of the global batch, before the step
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0, target_tokens = 0;  // of this global batch
  int64_t total_tokens = 0;               // since step 1
  double seconds = 0, tokens_per_second = 0;
  double data_wait_seconds = 0;  // of `seconds`: until the step had its batches
  bool skipped = false;          // loss or gradient was no number: the weights stayed as they were
  int64_t skipped_steps = 0;     // so far

  // Unscaled, summed over layers; only what the router has.
  std::optional<double> load_balance_loss, entropy_loss, l1_loss;
  std::optional<double>
      auxiliary;  // what was added to the loss: the above times their coefficients
  std::optional<double> lambda, sparsity;  // ReLU: lambda of this step, its S (SPEC section 9)

  std::vector<int64_t> moe_layers;                   // numbers of the MoE layers
  std::vector<route::CounterValues> layer_counters;  // one each
  int64_t row_bytes = 0;  // of one row between ranks: D x bytes of a number
  route::CounterTotal total() const;
};

// The step's numbers by name; for a mixture also the counters of core/route/counters_json.h, as a
// total and in "layers".
OrderedJson to_json(const StepRecord& record);

// metrics.jsonl: one object a step, on the disk when append() returns. UserError when the disk is
// full.
class MetricsFile {
 public:
  // Keeps the lines of the first `steps` steps that are there; what follows them goes.
  MetricsFile(const std::filesystem::path& file, int64_t steps);
  void append(const OrderedJson& line);  // to_json of a StepRecord

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace moe::train
