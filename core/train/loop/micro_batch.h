#pragma once
// What one micro-batch adds to a step: forward, head, backward, launch by launch. Recorded as
// graphs they are in micro_batch_graphs.h.

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

  bool operator==(const AuxCoefficients&) const = default;
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

// The auxiliary losses as the gradient has them; undefined where there is nothing to learn from.
at::Tensor weighted_sum(const route::AuxLosses& losses, const MicroBatchScale& scale);

// From the gradient of `hidden` rows, and from `auxiliary` where that is defined. `joins`: others
// wait for the exchanges of this backward, whether or not there is anything here.
void backward_from(const at::Tensor& hidden, const at::Tensor& gradient,
                   const at::Tensor& auxiliary, bool joins);

// Adds the gradient of `batch` to the model's parameters.
MicroBatchResult add_micro_batch(const model::Llama& model, const data::Batch& batch,
                                 const model::RoutingOptions& routing, const MicroBatchScale& scale,
                                 bool joins);

}  // namespace moe::train
