#include "core/upcycle/upcycle_request.h"

#include "core/base/error.h"

namespace moe::model {

Options request_options(UpcycleRequest& request) {
  const auto upcycles = [&request] { return request.experts.has_value(); };
  return {
      {.name = "upcycle",
       .member = &request.experts,
       .group = group::kModel,
       .help = "upcycle a dense MODEL in memory to N experts, as moe upcycle does on disk",
       .range = whole_between(1, kMaxExperts),
       .fallback = "MODEL as it is",
       .is_written = upcycles,
       .spelling = "--upcycled,--upcycle"},
      {.name = "layers",
       .member = &request.layers,
       .group = group::kModel,
       .help = "with --upcycle: even, odd, all, or a list like 0,3,5 or 0-3",
       .is_written = upcycles},
      {.name = "upcycle-seed",
       .member = &request.seed,
       .group = group::kModel,
       .help = "with --upcycle: random seed of the router weights (moe upcycle --seed)",
       .range = seed_range(),
       .is_written = upcycles},
      {.name = "granularity",
       .member = &request.granularity,
       .group = group::kModel,
       .help = "with --upcycle: split each expert into G (moe upcycle --granularity)",
       .range = whole_from(1),
       .is_written = upcycles},
      {.name = "shared-expert",
       .member = &request.shared_expert,
       .group = group::kModel,
       .help = "with --upcycle: add a shared expert (moe upcycle --shared-expert)",
       .is_written = upcycles},
  };
}

void check_request(const UpcycleRequest& request) {
  if (request.experts) {
    return;
  }
  USER_ERROR_IF(request.shared_expert,
                "--shared-expert: is of a dense folder that is taken as a mixture; add --upcycle "
                "N, or leave it out");
  USER_ERROR_IF(request.granularity != 1,
                "--granularity {}: cuts the experts of a dense folder that is taken as a mixture; "
                "add --upcycle N, or leave it out",
                request.granularity);
}

OrderedJson to_json(const UpcycleRequest& request) {
  if (!request.experts) {
    return nullptr;
  }
  return {{"experts", *request.experts},
          {"layers", request.layers},
          {"seed", request.seed},
          {"granularity", request.granularity},
          {"shared_expert", request.shared_expert}};
}

route::RouterSettings upcycled_router(const route::RouterRequest& router) {
  return route::requested_router(router, route::parse_router(kUpcycledRouter));
}

route::RouterRequest remaining_router_request(const UpcycleRequest& request,
                                              const route::RouterRequest& router) {
  return request.experts ? route::RouterRequest{} : router;
}

}  // namespace moe::model
