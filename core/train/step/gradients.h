#pragma once
// Language-model loss and its gradient without the logits of the whole batch: the head sees only
// positions that have a target, in blocks of rows, and the logits of a block become their own
// gradient in place. What stays is the gradient of the hidden rows; the head's own gradient lands
// in its weight. N target positions, D model width, V vocabulary.

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "core/data/batches.h"
#include "core/distributed/world.h"
#include "core/model/llama/llama.h"

namespace moe::train {

// Rows of a block, of a head of V words: on the CPU 64 MiB of logits, some of which the caches
// keep. On a GPU as many as make adding to the head's gradient, 8 V D bytes a block, small beside
// the products; the logits of a block then take 16 V KiB.
int64_t head_block_rows(int64_t vocabulary, bool on_cuda);

struct HeadLoss {
  at::Tensor rows;  // [N] i64, the positions with a target
  at::Tensor
      nll_sum;  // [] f64, over the N targets; a GPU's stays there, and nothing has waited for it
  at::Tensor hidden;  // [N, D] the rows with a target, part of the graph of the model
  at::Tensor
      gradient;  // [N, D] of scale * nll_sum with respect to `hidden`; hand it to its backward
};

// weight [V, D] f32, the head's; hidden [T, D] f32; targets [T] with data::kNoLoss where none;
// products in `type` (kernels/ops/linear.h), logits and sums in f32; in bf16 the gradient of the
// logits is rounded once, for both of its products. Adds the gradient of scale * nll_sum to the
// weight's, if it wants one. `block_rows`: other than head_block_rows().
HeadLoss head_loss(const at::Tensor& weight, const at::Tensor& hidden,
                   const std::vector<int64_t>& targets, double scale,
                   at::ScalarType type = at::kFloat, std::optional<int64_t> block_rows = {});

// Forward, head and backward of one micro-batch.

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

// The gradient of one global batch, micro-batch after micro-batch:
//   L = sum of NLL / number of targets of the GLOBAL batch  +  mean over micro-batches of the
//   auxiliary losses
// (core/route/README.md, "Losses"). So how a global batch is cut into micro-batches does not move a
// dense model.

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
