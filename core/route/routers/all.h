#pragma once
// The routers that there are: one line each. Each has a header with what it is (router.h) and a
// source with what it does with tensors (route.h).

#include <tuple>

#include "core/route/routers/expert_choice.h"
#include "core/route/routers/relu.h"
#include "core/route/routers/top_k.h"
#include "core/route/routers/top_p.h"

namespace moe::route {

// The first is the default.
using AllRouters = std::tuple<TopK, TopP, Relu, ExpertChoice>;

}  // namespace moe::route
