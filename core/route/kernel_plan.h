#pragma once
// The plan of a top-k router by the kernels of a GPU (kernels/ops/router.h,
// kernels/ops/top_k_plan.h): five launches where the rules of rule.h take about a hundred. The
// rules stay what defines it.

#include "core/route/rule.h"

namespace moe::route {

// What top_k, within_capacity, fill_in and intra_gpu make of `input`, f32 on a GPU, as `settings`
// (top-k) say. At most kernels::kMaxRouterExperts experts.
Plan plan_by_kernels(const RouteInput& input, const RouterSettings& settings);

}  // namespace moe::route
