#pragma once
// The list of router families. A family is a struct with two static functions: family(), its
// descriptor (router.h), is defined in its header, which does not include LibTorch; functions(),
// its tensor functions (route.h), in its source file.

#include <tuple>

#include "core/route/routers/expert_choice.h"
#include "core/route/routers/relu.h"
#include "core/route/routers/top_k.h"
#include "core/route/routers/top_p.h"

namespace moe::route {

// The first family is the default of RouterSettings.
using AllRouters = std::tuple<TopK, TopP, Relu, ExpertChoice>;

}  // namespace moe::route
