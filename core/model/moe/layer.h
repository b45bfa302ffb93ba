#pragma once
// MoE feed-forward layer: a router (core/route), the dispatch of tokens to experts and the
// combination of their outputs, on this process or over an all-to-all, and a shared expert.
//
// T tokens, D model width, E experts, L experts of this process, F expert width, R routed rows.

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/moe/adapter.h"
#include "core/model/moe/dispatch_layout.h"
#include "core/route/route.h"
#include "kernels/ops/linear.h"

namespace moe::model {

// Experts of this process: SwiGLU with optional adapters. A dense feed-forward is one expert.
class Experts {
 public:
  Experts() = default;
  Experts(kernels::Weight gate_up_weight, kernels::Weight down_weight, Adapter gate_up_lora = {},
          Adapter down_lora = {});
  virtual ~Experts() = default;

  // Returns the outputs [R, D] of the experts for rows [R, D], which are sorted by expert.
  // Differentiable. Segments::ends requires weights of one tensor each.
  virtual at::Tensor run(const at::Tensor& rows, const kernels::Segments& segments) const;

  bool has_adapters() const { return gate_up_adapter.defined() || down_adapter.defined(); }

  kernels::Weight gate_up;  // [L, 2F, D], gate rows first
  kernels::Weight down;     // [L, D, F]
  Adapter gate_up_adapter, down_adapter;
};

struct MoeWeights {
  at::Tensor router;         // [E, D] f32
  at::Tensor gate_up, down;  // of Experts

  Experts experts() const { return {gate_up, down}; }
};

// Router of one layer.
struct LayerRouter {
  const at::Tensor& weight;  // [E, D] f32
  const route::RouterSettings& settings;
  at::Tensor bias = {};  // [E], added to the scores when tokens choose experts; or undefined
};

struct MoeForwardOptions {
  double gate_scale = 1.0;    // factor of the gate weights
  bool count_tokens = false;  // fills MoeOutput::token_rows
  // Routing that activation checkpointing repeats. Set by the first call, without gates and losses.
  std::optional<route::Routing>* saved_routing = nullptr;
  at::Tensor residual = {};  // [T, D] f32, added to the output; or undefined
};

struct MoeOutput {
  at::Tensor y;              // [T, D] f32 (f64 if x is), including the residual
  route::AuxLosses losses;   // not multiplied by coefficients; to be summed over processes
  route::Counters counters;  // of the tokens of this process, on the device of x
  at::Tensor token_rows;     // [T, 3 + E] i64, route::count_rows_by_token; undefined by default
};

// Routes the normed input x [T, D] and runs the experts. Router logits are f32 (f64 if x is).
// `partition.local.source_rank` is -1 for padding, to which the experts add nothing.
MoeOutput moe_forward(const at::Tensor& x, const LayerRouter& router, const Experts& experts,
                      const TokenPartition& partition, const MoeForwardOptions& options = {});

// Returns an upper bound of the rows of one token in a plan: k choices, a fill-in and a
// rectification, or at least E if the number of routed rows has no tight bound known on the host.
int64_t max_choices(const route::Routing& routing);

// Returns y [T, D] on a process that holds all experts: for each token the sum of gate_scale *
// routing.weights[r] * expert(x) over its rows r of the plan, plus its row of `residual` [T, D] f32
// if defined. Differentiable in x [T, D], routing.weights, the weights of the experts and residual.
// On a GPU in bf16 with kernels::has_grouped_mm(), nothing is copied to the host if the number of
// routed rows has a tight bound known on the host. Buffers then have the size of the bound.
at::Tensor run_local_experts(const at::Tensor& x, const route::Routing& routing,
                             const Experts& experts, double gate_scale,
                             const at::Tensor& residual = {});

// Returns y of run_local_experts() for any partition. In an expert-parallel group rows and their
// gradients are sent to the process of their expert and back: forward and backward are collectives
// of the group, also for processes without rows. An expert gets its rows in the order of a single
// process, in one product unless `partition.parallel.overlap_all_to_all`. On a GPU the tokens per
// expert are copied to the host once per layer, unless make_fixed_layout() is used.
at::Tensor run_experts(const at::Tensor& x, const route::Routing& routing, const Experts& experts,
                       double gate_scale, const TokenPartition& partition,
                       const route::RouterSettings& router, const at::Tensor& residual = {});

// Expert of width Fs that processes every token (Qwen2-MoE). Every process holds the whole expert.
struct SharedExpert {
  at::Tensor gate;  // [1, D] f32, undefined in a layer without a shared expert
  Experts expert;   // L = 1, F = Fs

  bool defined() const { return gate.defined(); }

  // Returns sigmoid(x gate^T) * SwiGLU(x) [T, D] f32 (f64 if x is). Differentiable.
  at::Tensor run(const at::Tensor& x) const;
};

}  // namespace moe::model
