#pragma once
// Loss and gradient of a global batch, accumulated over micro-batches (core/route/README.md):
//   L = sum of NLL / targets of the GLOBAL batch + mean over micro-batches of the auxiliary losses
// (or the losses of larger groups of tokens, route::LossGroup).
// The division into micro-batches therefore does not change the result of a dense model.

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <vector>

#include "core/data/batches.h"
#include "core/distributed/comm.h"
#include "core/model/llama/llama.h"

namespace moe::train {

// Returns the number of rows of a block of head_loss(). On the CPU a block has 64 MiB of logits,
// part of which stays in the caches; on a GPU it has enough rows to hide the memory traffic of the
// head's gradient.
int64_t head_block_rows(int64_t vocabulary, bool on_cuda);

struct HeadLoss {
  at::Tensor nll_sum;   // [] f64, over the N targets; on the device of `hidden`, not synchronized
  at::Tensor hidden;    // [N, D] rows of the positions with a target, part of the model's graph
  at::Tensor gradient;  // [N, D] gradient of scale * nll_sum with respect to `hidden`
};

// Returns the language-model loss and its gradient. Only positions with a target are multiplied by
// the head, in blocks of rows whose logits are overwritten by their gradient. weight [V, D] f32,
// hidden [T, D] f32, targets [T] (data::kNoLoss: none). Products are computed in `type`
// (kernels/ops/linear.h), logits and sums in f32 (f64 if `type` is f64). Adds the gradient of
// scale * nll_sum to weight.grad() if weight requires one. `block_rows` replaces head_block_rows().
HeadLoss head_loss(const at::Tensor& weight, const at::Tensor& hidden,
                   const std::vector<int64_t>& targets, double scale,
                   at::ScalarType type = at::kFloat, std::optional<int64_t> block_rows = {});

// A value for each of the auxiliary losses.
template <typename Value>
struct PerAuxLoss {
  Value load_balance = {};  // coefficient alpha
  Value entropy = {};       // coefficient beta; top-p routers
  Value l1 = {};            // coefficient lambda; ReLU routers
  Value z = {}, sequence_balance = {};

  // Returns the members in the order of route::kAllLosses.
  static constexpr auto members() {
    return std::array{&PerAuxLoss::load_balance, &PerAuxLoss::entropy, &PerAuxLoss::l1,
                      &PerAuxLoss::z, &PerAuxLoss::sequence_balance};
  }
};

// Coefficients of one step. If z or sequence_balance is 0, its loss is not computed.
using AuxCoefficients = PerAuxLoss<double>;

// Losses and counters of a step. Auxiliary losses are sums over layers and means over
// micro-batches, without coefficients. They are unset if the router has no such loss; z and
// sequence_balance also if their coefficient is 0.
struct StepLosses : PerAuxLoss<std::optional<double>> {
  double loss = 0;  // language-model loss, mean over the targets; 0 if there are none
  int64_t tokens = 0, target_tokens = 0;
  bool has_loss() const { return target_tokens > 0; }
  std::vector<route::CounterValues> layers;  // per MoE layer, summed over micro-batches
  double sparsity = 0;                       // mean over MoE layers and micro-batches
};

// Adds the gradient of L to the model's parameters and returns the losses.
//
// With a `world` of several processes, each passes all micro-batches, computes its share of them
// (core/distributed/comm.h) and adds its share of the gradient: the shares of the holders of a
// parameter sum up to the gradient of L (Updater). The losses are those of the whole step.
StepLosses add_gradients(const model::Llama& model, const std::vector<data::Batch>& micro_batches,
                         const model::RoutingOptions& routing, const AuxCoefficients& coefficients,
                         distributed::World* world = nullptr);

}  // namespace moe::train
