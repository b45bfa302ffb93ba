#pragma once
// Loss and gradient of a global batch, accumulated over micro-batches:
//   L = sum of NLL / number of targets of the GLOBAL batch  +  mean over micro-batches of the
//   auxiliary losses
// (core/route/README.md, "Losses"). The division into micro-batches therefore does not change the
// result of a dense model.

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <vector>

#include "core/data/batches.h"
#include "core/distributed/comm.h"
#include "core/model/llama/llama.h"

namespace moe::train {

// Returns the number of rows of a block of head_loss(). On the CPU a block has 64 MiB of logits,
// part of which stays in the caches. On a GPU the logits of a block take 16 V KiB, and the memory
// traffic of the head's gradient, 8 V D bytes per block, takes little time compared with the
// products.
int64_t head_block_rows(int64_t vocabulary, bool on_cuda);

struct HeadLoss {
  at::Tensor nll_sum;   // [] f64, over the N targets; on the device of `hidden`, not synchronized
  at::Tensor hidden;    // [N, D] rows of the positions with a target, part of the model's graph
  at::Tensor gradient;  // [N, D] of scale * nll_sum with respect to `hidden`, for its backward
};

// Returns the language-model loss and its gradient, without the logits of the whole batch: only
// positions with a target are multiplied by the head, in blocks of rows, and the logits of a block
// are overwritten by their gradient. weight [V, D] f32, hidden [T, D] f32, targets [T]
// (data::kNoLoss: none). Products are computed in `type` (kernels/ops/linear.h), logits and sums in
// f32 (f64 if `type` is f64). In bf16 the gradient of the logits is rounded once, for both of its
// products. Adds the gradient of scale * nll_sum to weight.grad() if weight requires a gradient.
// `block_rows` replaces head_block_rows().
HeadLoss head_loss(const at::Tensor& weight, const at::Tensor& hidden,
                   const std::vector<int64_t>& targets, double scale,
                   at::ScalarType type = at::kFloat, std::optional<int64_t> block_rows = {});

// A value for each of the auxiliary losses.
template <typename Value>
struct PerAuxLoss {
  Value load_balance = {};  // coefficient: alpha
  Value entropy = {};       // beta, top-p
  Value l1 = {};            // lambda, ReLU
  Value z = {}, sequence_balance = {};

  // Returns the members in the order of route::kAllLosses.
  static constexpr auto members() {
    return std::array{&PerAuxLoss::load_balance, &PerAuxLoss::entropy, &PerAuxLoss::l1,
                      &PerAuxLoss::z, &PerAuxLoss::sequence_balance};
  }
};

// Coefficients of one step. z and sequence_balance of 0: not computed.
using AuxCoefficients = PerAuxLoss<double>;

// The auxiliary losses are sums over layers, means over micro-batches, without coefficients. Unset
// if the router has no such loss; z and sequence_balance: if their coefficient is 0.
struct StepLosses : PerAuxLoss<std::optional<double>> {
  double loss = 0;  // language-model loss, mean over the targets; 0 if there are none
  int64_t tokens = 0, target_tokens = 0;
  std::vector<route::CounterValues> layers;  // per MoE layer, summed over micro-batches
  double sparsity = 0;                       // mean over MoE layers and micro-batches
};

// Adds the gradient of L to the model's parameters and returns the losses.
//
// With a `world` of several processes, each process passes all micro-batches, computes its share of
// them (core/distributed/comm.h) and adds its share of the gradient: over the processes that hold
// a parameter, the shares sum up to the gradient of L (RankShards, optimizer.h). The returned
// losses are those of the whole step on every process.
StepLosses add_gradients(const model::Llama& model, const std::vector<data::Batch>& micro_batches,
                         const model::RoutingOptions& routing, const AuxCoefficients& coefficients,
                         distributed::World* world = nullptr);

}  // namespace moe::train
