#pragma once
// The plan of a top-k router by the kernels of a GPU (kernels/ops/router.h,
// kernels/ops/top_k_plan.h): five launches where the rules of rule.h take about a hundred. The
// rules stay what defines it.

#include "core/route/rule.h"

namespace moe::route {

// What top_k, within_capacity, fill_in and intra_gpu make of `input` as `settings` (top-k) say. On
// the CPU by the kernels' references. At most kernels::kMaxRouterExperts experts on a GPU.
Plan plan_by_kernels(const RouteInput& input, const RouterSettings& settings);

}  // namespace moe::route
