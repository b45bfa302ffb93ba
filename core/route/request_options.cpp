#include "core/route/request_options.h"

#include "core/route/router_settings.h"

namespace moe::route {

Options request_options(RouterRequest& request) {
  return {
      {.name = "router",
       .member = &request.router,
       .group = group::kRouter,
       .help = router_forms() + ", e.g. top1+ir+fr"},
      {.name = "cf",
       .member = &request.cf,
       .group = group::kRouter,
       .help = "capacity factor of a top-k router, or inf"},
      {.name = "ep-ranks",
       .member = &request.ep_ranks,
       .group = group::kRouter,
       .help = "logical expert-parallel ranks W, over which tokens and experts are divided"},
  };
}

}  // namespace moe::route
