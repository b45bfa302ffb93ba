#pragma once
// What a command is told that takes a dense folder as the mixture moe upcycle would make of it
// (open_checkpoint() of upcycle.h), and its options.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/base/option.h"

namespace moe::model {

inline constexpr int64_t kMaxExperts = 65536;

// Keeps the function of the dense model, so it is the router where nobody names one.
inline constexpr const char* kUpcycledRouter = "top2:cf=inf";

struct UpcycleRequest {
  std::optional<int64_t> experts;  // E, per MoE layer; open: the folder is taken as it is
  std::string layers = "even";     // even, odd, all or a list (layer_list.h)
  int64_t seed = 1;                // of the routers
  int64_t granularity = 1;         // G: every expert is cut into G slices (granularity.h)
  bool shared_expert = false;      // beside them, the dense feed-forward
};

// --upcycle, --layers, --upcycle-seed, --granularity and --shared-expert. `request` must outlive
// them.
Options request_options(UpcycleRequest& request);

// UserError: a shared expert or a granularity of a folder that is taken as it is.
void check_request(const UpcycleRequest& request);

// What a report says of it; null where the folder is taken as it is.
OrderedJson to_json(const UpcycleRequest& request);

}  // namespace moe::model
