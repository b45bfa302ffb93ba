#include "core/train/router_override.h"

#include "core/base/error.h"

namespace moe::train {

using route::Family;

namespace {

void check_family(const route::RouterSettings& stored,
                  const route::RouterSettings& asked,
                  std::vector<std::string>& notes) {
  if (stored.family == asked.family) {
    return;
  }
  if (stored.family == Family::kRelu || asked.family == Family::kRelu) {
    throw UserError(
        "--router {}: the folder was made for {}: a softmax router's logits mean nothing to ReLU, "
        "nor the other way; "
        "upcycle the dense model again with the router wanted",
        to_string(asked),
        to_string(stored));
  }
  notes.push_back(fmt::format(
      "warning: router {} instead of the stored {}: the combine weights no longer sum to what the "
      "folder was made with",
      to_string(asked),
      to_string(stored)));
}

void check_top_k(const route::RouterSettings& stored,
                 const route::RouterSettings& asked,
                 bool force,
                 std::vector<std::string>& notes) {
  if (stored.gate_norm != asked.gate_norm && !force) {
    throw UserError(
        "--router {}: another gate= than the stored {} rescales the output of every MoE layer; add "
        "--force if that "
        "is meant",
        to_string(asked),
        to_string(stored));
  }
  if (stored.k != asked.k) {
    notes.push_back(
        fmt::format("note: {} experts per token instead of the stored {}", asked.k, stored.k));
  }
}

}  // namespace

route::RouterSettings override_router(const route::RouterSettings& stored,
                                      const RouterOverride& asked,
                                      int64_t experts,
                                      bool force,
                                      std::vector<std::string>& notes) {
  route::RouterSettings router = asked.router;
  check_family(stored, router, notes);
  if (router.family == Family::kTopK && stored.family == Family::kTopK) {
    if (!asked.capacity_given) {
      router.capacity_factor = stored.capacity_factor;
    }
    check_top_k(stored, router, force, notes);
  }
  check_router(router, experts);
  return router;
}

void check_ep_ranks(int64_t ep_ranks, int64_t experts) {
  if (ep_ranks < 1 || experts % ep_ranks != 0) {
    throw UserError("--ep-ranks {}: {} experts cannot be shared equally; give a divisor of {}",
                    ep_ranks,
                    experts,
                    experts);
  }
}

}  // namespace moe::train
