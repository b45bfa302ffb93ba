#pragma once
// The options of every command that takes a router beside the folder's own.

#include "core/base/option.h"
#include "core/route/router_override.h"

namespace moe::route {

// --router, --cf and --ep-ranks. `request` must outlive them.
Options request_options(RouterRequest& request);

}  // namespace moe::route
