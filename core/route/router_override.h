#pragma once
// The router that a command's flags ask for, alone or in place of the one a folder stores: valid in
// silence, with a note, only with --force, or not at all (README.md, "What may stand in").

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/option.h"
#include "core/route/router_settings.h"

namespace moe::route {

// --router, --cf and --ep-ranks as given; what was not given stays empty.
struct RouterRequest {
  std::string router;
  std::string cf;  // a positive number or "inf"
  std::optional<int64_t> ep_ranks;
  bool any() const { return !router.empty() || !cf.empty() || ep_ranks; }
};

// The options of every command that takes a router beside the folder's own: --router, --cf and
// --ep-ranks. `request` must outlive them.
Options request_options(RouterRequest& request);

// --router if given, else `fallback`, with --cf over it. UserError: --cf that is no number,
// contradicts --router's own cf=, or stands beside a router without slots.
RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback);

// What a folder stores of its routing.
struct StoredRouter {
  RouterSettings router;
  int64_t ep_ranks = 1;
  int64_t experts = 1;
  double gate_scale = 1.0;  // it stays whatever router stands in
};

enum class Purpose { kEvaluate, kTrain };

struct ResolvedRouter {
  RouterSettings router;
  int64_t ep_ranks = 1;
  std::vector<std::string> notes;  // what the user should know, a sentence each
  bool names_lambda0 = false;      // --router says where ReLU's lambda shall start
};

// Within a family, options that --router does not name stay as the folder has them (top-p is named
// whole: without max= it has none). What only training reads (st, lb; ReLU's k, lambda0, mult, l1)
// stays too when evaluating, with a note. UserError: logits of another meaning (relu <-> softmax),
// gate changed without `force`, ep_ranks that do not divide the experts, k > E, a router without
// inference when evaluating, and what requested_router refuses.
ResolvedRouter override_router(const StoredRouter& stored, const RouterRequest& request, bool force,
                               Purpose purpose);

}  // namespace moe::route
