#pragma once
// The experts of a layer where nothing is read back from the device: loads, segments and weights
// stay there, and all sizes follow from the plan's room (core/route/plan.h). What it costs is room
// for rows that may not come.

#include "core/model/moe/layer.h"

namespace moe::model {

// As run_experts of moe_layer.h, without adapters: y [T, D] of x [T, D].
at::Tensor run_experts_on_device(const at::Tensor& x, const MoeWeights& weights,
                                 const route::Routing& routing, double gate_scale);

}  // namespace moe::model
