#pragma once
// Rows to their experts, and the experts' outputs back. On one process rows are gathered by expert;
// with expert parallelism they also travel to the process that owns the expert and back, and so do
// their gradients. T tokens, D model width, E experts, R rows of a plan, G processes.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "core/model/moe/expert_parallel.h"
#include "core/route/route.h"
#include "kernels/ops/permutation.h"

namespace moe::model {

// Choices that a token can have in the plan of a routing: those of the router, one of fill-in and
// one of rectification; without a capacity every expert may be one.
int64_t choices_of(const route::Routing& routing);

// The first `rows` rows of the plan, for kernels::permute and kernels::unpermute.
kernels::Permutation plan_permutation(const route::Routing& routing, int64_t rows);

// Runs experts on `rows` [n, D], which are sorted by expert, tokens_per_expert[e] of them each:
// [n, D].
using RunExperts = std::function<at::Tensor(const at::Tensor& rows,
                                            const std::vector<int64_t>& tokens_per_expert)>;

// Runs of the local experts and of replicas of experts that other processes own.
struct RunShadowed {
  RunExperts owned, replicas;
};
// Replicates `experts` (shadowed_experts.h; a collective of the group).
using ShadowExperts = std::function<RunShadowed(const std::vector<int64_t>& experts)>;

// [R, D] in the plan's order: what its experts make of x's rows at the plan's tokens.
// `tokens_per_expert` [E], R their sum; unused rows of the plan are left out. x [T, D].
at::Tensor dispatch_local(const at::Tensor& x, const route::Routing& routing,
                          const std::vector<int64_t>& tokens_per_expert, const RunExperts& run);

// The same with expert parallelism: a collective of the group, forward and backward, that every
// process joins whatever rows it has. An expert sees the rows in the order of one process alone, in
// one product unless `spread.parallel.overlap_all_to_all`; where `shadow` is given and experts are
// shadowed, on every process its own rows.
at::Tensor dispatch_expert_parallel(const at::Tensor& x, const route::Routing& routing,
                                    const TokenSpread& spread, const route::RouterSettings& router,
                                    const std::vector<int64_t>& tokens_per_expert,
                                    const RunExperts& run, const ShadowExperts& shadow = {});

}  // namespace moe::model
