#pragma once
// Forward, head and backward of one micro-batch.

#include <ATen/ATen.h>

#include <vector>

#include "core/data/batches.h"
#include "core/model/llama/llama.h"

namespace moe::train {

// What the auxiliary losses are multiplied by.
struct AuxCoefficients {
  double load_balance = 0;             // alpha
  double entropy = 0;                  // beta, top-p
  double l1 = 0;                       // lambda of this step, ReLU
  double z = 0, sequence_balance = 0;  // 0: not computed either
};

// How a micro-batch counts in the gradient of its step.
struct MicroBatchScale {
  AuxCoefficients coefficients;
  double target_share = 0;  // of one target among all of the step
  double batch_share = 0;   // of this micro-batch
};

// What its device knows when all has been launched; nothing has waited for it.
struct MicroBatchResult {
  at::Tensor nll_sum;       // [] f64
  route::AuxLosses losses;  // without gradients
  std::vector<route::Counters> counters;
};

// Adds the gradient of `batch` to the model's parameters. `joins`: other processes wait for the
// exchanges of this backward, so it runs even if this process has no rows.
MicroBatchResult add_micro_batch(const model::Llama& model, const data::Batch& batch,
                                 const model::RoutingOptions& routing, const MicroBatchScale& scale,
                                 bool joins);

}  // namespace moe::train
