#pragma once
// List of router families. A family is a struct with two static functions: family() returns its
// descriptor (router.h) and is defined in its header, without LibTorch; functions() returns its
// tensor functions (route.h) and is defined in its source file.

#include <tuple>

#include "core/route/routers/expert_choice.h"
#include "core/route/routers/relu.h"
#include "core/route/routers/top_k.h"
#include "core/route/routers/top_p.h"

namespace moe::route {

// The first family is the default of RouterSettings.
using AllRouters = std::tuple<TopK, TopP, Relu, ExpertChoice>;

}  // namespace moe::route
