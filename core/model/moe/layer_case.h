#pragma once
// Routing cases of kind "layer" (core/route/README.md): x, router and expert weights in, the output
// and every gradient of <y, dy> + sum of coefficient * auxiliary loss out, through the very layer
// that models are made of.

#include <string>

#include "core/base/json.h"
#include "core/route/routing_case.h"

namespace moe::model {

// The logits [T, E] that a layer case routes, with its router and ranks. UserError, opened by
// `where`, for keys that are missing or do not fit each other.
route::RoutingCase read_layer_routing(const Json& input, const std::string& where);

// {"expect", "loss", "grad"}. UserError as above.
OrderedJson answer_layer_case(const Json& input, const std::string& where);

}  // namespace moe::model
