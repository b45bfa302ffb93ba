#pragma once
// Which router a run may put in place of the one its folder stores (SPEC section 10, the table of
// overrides).

#include <string>
#include <vector>

#include "core/route/router_settings.h"

namespace moe::train {

struct RouterOverride {
  route::RouterSettings router;
  bool capacity_given =
      false;  // --cf, or cf= inside --router; else a top-k folder's own capacity factor is kept
};

// The router to run with. Valid: +ir, +fr, capacity, k, p, max, order, and what concerns training
// alone. Top-k <-> top-p adds a warning to `notes`, another k a note. UserError: softmax <-> relu,
// another gate norm without `force`, k > E.
route::RouterSettings override_router(const route::RouterSettings& stored,
                                      const RouterOverride& asked,
                                      int64_t experts,
                                      bool force,
                                      std::vector<std::string>& notes);

// UserError unless W logical ranks own equally many of the experts.
void check_ep_ranks(int64_t ep_ranks, int64_t experts);

}  // namespace moe::train
