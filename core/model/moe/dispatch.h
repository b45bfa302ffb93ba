#pragma once
// Rows to their experts and outputs back. One interface, so that a layer never asks how many
// processes there are: on one process rows are gathered by expert; with shared experts (SPEC
// section 12) they also travel, and both ways have gradients, which travel back. T tokens, D model
// width, E experts, R rows of a plan, G processes, C_r slots of logical rank r at an expert.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "core/model/moe/expert_parallel.h"
#include "core/route/routers.h"

namespace moe::model {

// What the E/G experts here make of `rows` [n, D], which lie sorted by expert, loads[e] of them
// each: [n, D].
using RunRows =
    std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& loads)>;

// The same of rows at the experts here, and of rows at experts that were borrowed.
struct RunLent {
  RunRows own, borrowed;
};
// Lends `experts` (lent_experts.h; a collective of the group).
using Lend = std::function<RunLent(const std::vector<int64_t>& experts)>;

// [R, D] in the plan's order: x's rows at the plan's tokens as its experts made them. `loads` [E]:
// rows of each expert, R their sum; unused rows of the plan are left out. x [T, D].
at::Tensor dispatch_here(const at::Tensor& x, const route::Routing& routing,
                         const std::vector<int64_t>& loads, const RunRows& run);

// The same where experts are shared: a collective of the group, forward and backward, that every
// process joins whatever it has. An expert sees the rows of one process in the same order (by
// logical rank, then slot, IR rows last), in one product unless
// `sharing.spread.parallel.overlaps`; where `lend` is given and experts are lent, on every process
// its own.
at::Tensor dispatch_among(const at::Tensor& x, const route::Routing& routing,
                          const Sharing& sharing, const std::vector<int64_t>& loads,
                          const RunRows& run, const Lend& lend = {});

}  // namespace moe::model
