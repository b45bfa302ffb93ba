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

// Routes and runs the experts. x [T, D] is the normed input. `spread.local.home` gives each token
// its logical rank, -1 for padding (its y row is 0). `decided`, when given, keeps what was decided:
// empty, it is filled; else tokens go where it says. `bias` [E]: of the choice, as route() takes
// it. `residual` [T, D] f32: added to what the experts give, where it is defined.
MoeOutput moe_forward(const at::Tensor& x, const at::Tensor& router_weight, const Experts& experts,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens = false,
                      std::optional<route::Routing>* decided = nullptr, const at::Tensor& bias = {},
                      const at::Tensor& residual = {});
// The same of weights in one tensor each.
MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens = false,
                      std::optional<route::Routing>* decided = nullptr);

}  // namespace moe::model
