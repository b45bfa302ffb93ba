#pragma once
// MoE feed-forward layer: a router (core/route), the dispatch of tokens (token_dispatcher.h), the
// experts of this process, and a shared expert.
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

// The experts of this process: SwiGLU with optional adapters.
class Experts {
 public:
  // gate_up [L, 2F, D], gate rows first; down [L, D, F].
  Experts(kernels::Weight gate_up, kernels::Weight down, Adapter gate_up_adapter = {},
          Adapter down_adapter = {});
  virtual ~Experts() = default;

  // Returns the outputs [R, D] of the experts. rows [R, D] are sorted by expert; expert e has
  // tokens_per_expert[e] of them.
  virtual at::Tensor run(const at::Tensor& rows,
                         const std::vector<int64_t>& tokens_per_expert) const;
  // As run(), with counts on the device: the rows of expert e end before ends[e], `ends` [L] i32
  // (kernels/ops/linear.h). Requires weights of one tensor each.
  virtual at::Tensor run_segments(const at::Tensor& rows, const at::Tensor& ends) const;

 private:
  kernels::Weight gate_up_, down_;
  Adapter gate_up_adapter_, down_adapter_;
};

struct MoeWeights {
  at::Tensor router;   // [E, D] f32
  at::Tensor gate_up;  // [L, 2F, D], gate rows first
  at::Tensor down;     // [L, D, F]
  Adapter gate_up_adapter = {}, down_adapter = {};

  Experts experts() const { return {gate_up, down, gate_up_adapter, down_adapter}; }
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
  // Routing to repeat in activation checkpointing. If empty, it is set, without gates and losses.
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

// Expert of width Fs that processes every token (Qwen2-MoE). Every process holds the whole expert.
struct SharedExpert {
  at::Tensor gate;          // [1, D] f32, undefined in a layer without a shared expert
  kernels::Weight gate_up;  // [1, 2Fs, D], gate rows first
  kernels::Weight down;     // [1, D, Fs]
  Adapter gate_up_adapter = {}, down_adapter = {};

  bool defined() const { return gate.defined(); }

  // Returns sigmoid(x gate^T) * SwiGLU(x) [T, D] f32 (f64 if x is). Differentiable.
  at::Tensor run(const at::Tensor& x) const;
};

}  // namespace moe::model
