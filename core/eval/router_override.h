#pragma once
// Which routers an evaluation may put in place of the folder's own (the table of SPEC section 10):
// valid, with a note, only with --force, or not at all.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/config.h"
#include "core/route/router_settings.h"

namespace moe::eval {

struct RouterOverride {
  std::string router;               // --router; empty = the folder's
  std::string cf;                   // --cf, "inf" or a number; empty = not given
  std::optional<int64_t> ep_ranks;  // --ep-ranks
  bool force = false;               // allows gate=selected <-> gate=none
  bool any() const { return !router.empty() || !cf.empty() || ep_ranks; }
};

struct ResolvedRouter {
  route::RouterSettings router;
  int64_t ep_ranks = 1;
  std::vector<std::string> notes;  // what the user should know, a sentence each
};

// Options that --router does not name (cf, gate, order, ..) stay as the folder has them when both
// are top-k. UserError: a dense model, other experts' meaning (relu <-> softmax), gate changed
// without force, --cf against --router's own cf or beside a router without capacity, ep_ranks that
// do not divide the experts, k > E.
ResolvedRouter resolve_router(const model::ModelConfig& config, const RouterOverride& given);

}  // namespace moe::eval
