#pragma once
// The gradient of one global batch, micro-batch after micro-batch:
//   L = sum of NLL / number of targets of the GLOBAL batch  +  mean over micro-batches of the
//   auxiliary losses
// (core/route/README.md, "Losses"). So how a global batch is cut into micro-batches does not move a
// dense model.

#include <vector>

#include "core/data/batches.h"
#include "core/distributed/world.h"
#include "core/model/llama/llama.h"
#include "core/train/loop/micro_batch.h"

namespace moe::train {

struct StepLosses {
  double loss = 0;  // language-model loss, mean over the targets; 0 when there is none
  int64_t tokens = 0, target_tokens = 0;
  // Unscaled means over micro-batches; what the router has, and of the last two what is asked for.
  std::optional<double> load_balance, entropy, l1, z, sequence_balance;
  std::vector<route::CounterValues> layers;  // one a MoE layer, summed over micro-batches
  double sparsity = 0;                       // mean over MoE layers and micro-batches
};

// Adds the gradient of L to the model's parameters.
//
// In a `world` of several processes every one is given all micro-batches, computes its share of
// them (core/distributed/world.h) and adds its share of the gradient: of a parameter that several
// hold, theirs sum up to the gradient of L (rank_shards.h does that). What is returned is the whole
// step's on every process.
StepLosses add_gradients(const model::Llama& model, const std::vector<data::Batch>& micro_batches,
                         const model::RoutingOptions& routing, const AuxCoefficients& coefficients,
                         distributed::World* world = nullptr);

}  // namespace moe::train
