#pragma once
// Dispatch of tokens: permutes them into expert order, on this process or over an all-to-all, runs
// the experts, and combines their outputs.
//
// T tokens, D model width, E experts, R rows of a plan, G processes.

#include <ATen/ATen.h>

#include "core/model/moe/dispatch_layout.h"
#include "core/model/moe/layer.h"
#include "core/route/route.h"

namespace moe::model {

// Returns an upper bound of the rows of one token in a plan: k choices, a fill-in and a
// rectification, or at least E if the number of routed rows has no tight bound known on the host.
int64_t max_choices(const route::Routing& routing);

// Returns y [T, D] on a process that holds all experts: for each token the sum of gate_scale *
// routing.weights[r] * expert(x) over its rows r of the plan, plus its row of `residual` [T, D] f32
// if defined. Differentiable in x [T, D], routing.weights, the experts' weights and residual. On a
// GPU in bf16 with kernels::has_grouped_mm(), nothing is copied to the host if the number of routed
// rows has a tight bound known on the host, which is then the size of all buffers.
at::Tensor run_local_experts(const at::Tensor& x, const route::Routing& routing,
                             const Experts& experts, double gate_scale,
                             const at::Tensor& residual = {});

// Returns y of run_local_experts() for any partition. In an expert-parallel group rows and their
// gradients are sent to the process of their expert and back: forward and backward are collectives
// of the group, also for processes without rows. An expert gets its rows in the order of a single
// process, in one product unless `partition.parallel.overlap_all_to_all`. On a GPU the tokens per
// expert are copied to the host once per layer, except where make_fixed_layout() serves.
at::Tensor run_experts(const at::Tensor& x, const route::Routing& routing, const Experts& experts,
                       double gate_scale, const TokenPartition& partition,
                       const route::RouterSettings& router, const at::Tensor& residual = {});

}  // namespace moe::model
