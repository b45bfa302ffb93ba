#pragma once
// Options of the commands that open a dense folder as the mixture that moe upcycle would make of it
// (open_checkpoint() of upcycle.h).

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/base/option.h"
#include "core/route/router_override.h"

namespace moe::model {

inline constexpr int64_t kMaxExperts = 65536;

// Default router of upcycling: preserves the function of the dense model.
inline constexpr const char* kUpcycledRouter = "top2:cf=inf";

struct UpcycleRequest {
  std::optional<int64_t> experts;  // E, per MoE layer; empty: the folder is opened as it is
  std::string layers = "even";     // even, odd, all or a list (parse_layers())
  int64_t seed = 1;                // of the routers
  int64_t granularity = 1;         // G: every expert is cut into G slices (expert_sources.h)
  bool shared_expert = false;      // keeps the dense feed-forward in addition to the experts
};

Options request_options(UpcycleRequest& request);

// Throws UserError if a request without experts has a shared expert or a granularity.
void check_request(const UpcycleRequest& request);

OrderedJson to_json(const UpcycleRequest& request);  // for a report; null without experts

// Returns the router of an upcycled mixture, before granularity.
route::RouterSettings upcycled_router(const route::RouterRequest& router);

// Returns the part of `router` that still applies to the result of open_checkpoint().
route::RouterRequest remaining_router_request(const UpcycleRequest& request,
                                              const route::RouterRequest& router);

}  // namespace moe::model
