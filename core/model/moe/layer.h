#pragma once
// One MoE feed-forward layer: a router decides (core/route), a dispatcher brings tokens to experts
// and the outputs back (token_dispatcher.h), the experts compute (experts.h). T tokens, D model
// width, E experts, F expert width, R routed rows (core/README.md has the legend).

#include <ATen/ATen.h>

#include <optional>

#include "core/model/moe/expert_parallel.h"
#include "core/model/moe/experts.h"
#include "core/route/route.h"

namespace moe::model {

struct MoeWeights {
  at::Tensor router;   // [E, D] f32
  at::Tensor gate_up;  // [E/G, 2F, D], gate rows first; the experts of this process
  at::Tensor down;     // [E/G, D, F]
  Adapter gate_up_adapter = {}, down_adapter = {};

  Experts experts() const { return {gate_up, down, gate_up_adapter, down_adapter}; }
};

struct MoeOutput {
  at::Tensor y;              // [T, D] f32 (f64 of f64), with the residual where that was given
  route::AuxLosses losses;   // unscaled, with gradients, grouped by home rank: this process's part
  route::Counters counters;  // on the device of x, of the tokens of this process
  at::Tensor token_rows;     // [T, 3 + E] i64, route::rows_of_tokens; undefined unless asked for
};

// [T, E] of x [T, D] and the router [E, D]: f32 whatever the model's dtype is; f64 stays, for
// gradient checks.
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& router);

// Router of one layer.
struct LayerRouter {
  const at::Tensor& weight;  // [E, D] f32
  const route::RouterSettings& settings;
  at::Tensor bias = {};  // [E], added where tokens choose, as route() takes it; undefined: none
};

struct MoeForwardOptions {
  double gate_scale = 1.0;    // multiplies the gates
  bool count_tokens = false;  // fills MoeOutput::token_rows
  // Routing of the layer for recomputation: filled if empty, else tokens are routed as it says.
  std::optional<route::Routing>* decided = nullptr;
  at::Tensor residual = {};  // [T, D] f32, added to the output of the experts; undefined: none
};

// Routes the normed input x [T, D] and runs the experts. `spread.local.home` is the logical rank of
// each token, -1 for padding, whose rows of y are 0.
MoeOutput moe_forward(const at::Tensor& x, const LayerRouter& router, const Experts& experts,
                      const TokenSpread& spread, const MoeForwardOptions& options = {});
// Overload for weights of one tensor each.
MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      const MoeForwardOptions& options = {});

}  // namespace moe::model
