#pragma once
// Tokens to their experts and the outputs back, wherever the experts are: a layer calls run() and
// asks nothing more. T tokens, D model width, E experts, R rows of a plan, G processes.

#include <ATen/ATen.h>

#include <memory>

#include "core/model/moe/expert_parallel.h"
#include "core/model/moe/experts.h"
#include "core/route/route.h"
#include "kernels/ops/permutation.h"

namespace moe::model {

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  TokenDispatcher(const TokenDispatcher&) = delete;
  TokenDispatcher& operator=(const TokenDispatcher&) = delete;

  // y [T, D]: for each token the sum of gate_scale * weight * expert(x) over its rows of the plan,
  // the weights [R] being those of the routing, and its row of `residual` [T, D] f32 besides, where
  // that is given. x [T, D]. Differentiable in x, weights, experts and residual.
  virtual at::Tensor run(const at::Tensor& x, const route::Routing& routing, const Experts& experts,
                         double gate_scale, const at::Tensor& residual) const = 0;
  at::Tensor run(const at::Tensor& x, const route::Routing& routing, const Experts& experts,
                 double gate_scale) const {
    return run(x, routing, experts, gate_scale, {});
  }

 protected:
  TokenDispatcher() = default;
};

// All experts are of this process. Where the plan's room is tight nothing is read back from a GPU
// in bf16: all sizes follow from it (core/route/plan.h), at the price of room for rows that may not
// come. On a GPU without
// kernels::has_grouped_mm() they are counted on the host.
std::unique_ptr<TokenDispatcher> local_dispatcher();

// Rows travel to the process that owns the expert and back, and so do their gradients: a collective
// of the group, forward and backward, that every process joins whatever rows it has. An expert sees
// the rows in the order of one process alone, in one product unless
// `spread.parallel.overlap_all_to_all`. A GPU's host reads the tokens per expert once a layer, or
// nothing in bf16 of routers with a capacity (make_fixed_layout() in dispatch_layout.h), but where
// a loop makes the experts' products. Both arguments outlive it.
std::unique_ptr<TokenDispatcher> expert_parallel_dispatcher(const TokenSpread& spread,
                                                            const route::RouterSettings& router);

// The one of the two that serves tokens which live as `spread` says.
std::unique_ptr<TokenDispatcher> make_token_dispatcher(const TokenSpread& spread,
                                                       const route::RouterSettings& router);

// Whether the plan has room for about the rows that come: those that capacity lets through, or
// those that tokens request of top-k without a capacity, which are k a token. Of other routers
// without a capacity it is every expert of every token.
bool has_tight_room(const route::Routing& routing);

// Choices that a token can have in the plan of a routing: those of the router, one of fill-in and
// one of rectification; without tight room every expert may be one.
int64_t choices_of(const route::Routing& routing);

// The first `rows` rows of the plan, for kernels::permute and kernels::unpermute.
kernels::Permutation plan_permutation(const route::Routing& routing, int64_t rows);

}  // namespace moe::model
