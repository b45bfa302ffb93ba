#include "core/model/convert/upcycle_request.h"

#include "core/base/error.h"

namespace moe::model {

Options request_options(UpcycleRequest& request) {
  const auto upcycles = [&request] { return request.experts.has_value(); };
  return {
      {.name = "upcycle",
       .member = &request.experts,
       .group = group::kModel,
       .help = "take a dense MODEL as the mixture of N experts that moe upcycle makes of it; "
               "nothing is written",
       .fallback = "MODEL as it is",
       .range = whole_between(1, kMaxExperts),
       .is_written = upcycles,
       .spelled = "--upcycled,--upcycle"},
      {.name = "layers",
       .member = &request.layers,
       .group = group::kModel,
       .help = "with --upcycle: even, odd, all, or a list like 0,3,5 or 0-3",
       .is_written = upcycles},
      {.name = "upcycle-seed",
       .member = &request.seed,
       .group = group::kModel,
       .help = "with --upcycle: of the routers, moe upcycle's --seed",
       .range = whole_from(0),
       .is_written = upcycles},
      {.name = "granularity",
       .member = &request.granularity,
       .group = group::kModel,
       .help = "with --upcycle: each of the N experts is cut into G, and k, max and cf of --router "
               "grow G times, as by moe upcycle",
       .fallback = "1",
       .range = whole_from(1),
       .is_written = upcycles},
      {.name = "shared-expert",
       .member = &request.shared_expert,
       .group = group::kModel,
       .help = "with --upcycle: the dense feed-forward stays beside the experts, moe upcycle's "
               "--shared-expert",
       .is_written = upcycles},
  };
}

void check_request(const UpcycleRequest& request) {
  if (request.experts) {
    return;
  }
  if (request.shared_expert) {
    throw UserError(
        "--shared-expert: is of a dense folder that is taken as a mixture; add --upcycle N, or "
        "leave it out");
  }
  if (request.granularity != 1) {
    throw UserError(
        "--granularity {}: cuts the experts of a dense folder that is taken as a mixture; add "
        "--upcycle N, or leave it out",
        request.granularity);
  }
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

}  // namespace moe::model
