#pragma once
// Resolution of --router, --cf and --ep-ranks against the router that a folder stores. README.md
// ("Router overrides") lists the changes that are applied silently, with a note, with --force only,
// or never.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/option.h"
#include "core/route/router.h"

namespace moe::route {

// Router flags of a command; empty if not given.
struct RouterRequest {
  std::string router;
  std::string cf;  // a positive number or "inf"
  std::optional<int64_t> ep_ranks;
  bool any() const { return !router.empty() || !cf.empty() || ep_ranks; }
};

// Returns the options --router, --cf and --ep-ranks. `request` must outlive them.
Options request_options(RouterRequest& request);

// Returns --router if given, else `fallback`, with the capacity factor of --cf. Throws UserError if
// --cf is not a number, contradicts cf= of --router, or the router has no capacity.
RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback);

// Routing settings of a folder.
struct StoredRouter {
  RouterSettings router;
  int64_t ep_ranks = 1;
  int64_t experts = 1;
  double gate_scale = 1.0;  // not changed by an override
};

enum class Purpose { kEvaluate, kTrain };

struct ResolvedRouter {
  RouterSettings router;
  int64_t ep_ranks = 1;
  std::vector<std::string> notes;  // for the user, one sentence each
  bool sets_lambda0 = false;       // --router sets the first lambda of ReLU
};

// Overrides a stored router. Within a family, options that --router omits keep their stored values
// (max of top-p and bias of top-k are reset). For kEvaluate, options that only training uses keep
// their stored values, with a note if they were given.
//
// Throws UserError if one router has softmax logits and the other ReLU logits, the gate changes
// without `force`, ep_ranks does not divide the experts, k > E, the router is for training only and
// the purpose is kEvaluate, and in the cases of requested_router().
ResolvedRouter override_router(const StoredRouter& stored, const RouterRequest& request, bool force,
                               Purpose purpose);

}  // namespace moe::route
