#include "core/route/router_override.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/base/error.h"

namespace moe::route {
namespace {

// Whether the text of --router names the option itself.
bool names_option(std::string text, std::string_view option) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const size_t at = text.find(std::string(option) + "=");
  return at != std::string::npos &&
         (text[at - 1] == ':' || text[at - 1] == ',' || text[at - 1] == ' ');
}

// --cf as the router grammar reads it, so that both spellings mean the same.
std::optional<double> capacity_factor(const std::string& cf) {
  try {
    if (cf.find(',') == std::string::npos) {
      return parse_router("top1:cf=" + cf).capacity_factor;
    }
  } catch (const UserError&) {  // said below in this flag's own words
  }
  throw UserError("--cf '{}' is not a positive number or 'inf'", cf);
}

void keep_unnamed_options(const std::string& text,
                          const RouterSettings& stored,
                          RouterSettings& router) {
  if (!names_option(text, "cf")) {
    router.capacity_factor = stored.capacity_factor;
  }
  if (!names_option(text, "gate")) {
    router.gate_norm = stored.gate_norm;
  }
  if (!names_option(text, "order")) {
    router.slot_order = stored.slot_order;
  }
  if (!names_option(text, "st")) {
    router.straight_through = stored.straight_through;
  }
  if (!names_option(text, "lb")) {
    router.lb_count = stored.lb_count;
  }
}

void apply_cf(const RouterRequest& given, RouterSettings& router) {
  if (given.cf.empty()) {
    return;
  }
  const auto cf = capacity_factor(given.cf);
  if (router.family != Family::kTopK) {
    throw UserError(
        "--cf {}: only top-k routers have a capacity, this one is {}", given.cf, to_string(router));
  }
  if (names_option(given.router, "cf") && router.capacity_factor != cf) {
    throw UserError("--cf {} contradicts --router {}; give one of them", given.cf, given.router);
  }
  router.capacity_factor = cf;
}

// Another family: refused, or noted.
void check_family(const RouterSettings& stored,
                  const RouterSettings& router,
                  const std::string& change,
                  std::vector<std::string>& notes) {
  if ((stored.family == Family::kRelu) != (router.family == Family::kRelu)) {
    throw UserError(
        "--router: {}: ReLU and softmax logits mean different things; choose a router of the "
        "stored family, or upcycle "
        "the dense model again",
        change);
  }
  if (stored.family != router.family) {
    notes.push_back(
        "warning: " + change +
        ": the same softmax scores, but weights that sum to another value; expect other quality");
  }
}

// Another gate norm: refused, or noted when forced.
void check_gate(const RouterSettings& stored,
                const RouterSettings& router,
                const std::string& change,
                bool force,
                std::vector<std::string>& notes) {
  if (stored.family != Family::kTopK || router.family != Family::kTopK ||
      stored.gate_norm == router.gate_norm) {
    return;
  }
  if (!force) {
    throw UserError(
        "--router: {}: another gate rescales every MoE output; add --force if that is meant",
        change);
  }
  notes.push_back("warning: " + change + ": another gate rescales every MoE output");
}

void note_k(const RouterSettings& stored,
            const RouterSettings& router,
            const std::string& change,
            Purpose purpose,
            std::vector<std::string>& notes) {
  if (stored.family != router.family || stored.k == router.k) {
    return;
  }
  if (router.family == Family::kTopK) {
    notes.push_back(
        fmt::format("{}: k was {}; the capacity factor is kept unless given", change, stored.k));
  } else if (purpose == Purpose::kEvaluate) {
    notes.push_back(fmt::format("{}: k has no effect when a model is only evaluated", change));
  } else {
    notes.push_back(fmt::format("{}: k moves the target sparsity", change));
  }
}

}  // namespace

RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback) {
  RouterSettings router = request.router.empty() ? fallback : parse_router(request.router);
  apply_cf(request, router);
  return router;
}

ResolvedRouter override_router(const StoredRouter& stored,
                               const RouterRequest& request,
                               bool force,
                               Purpose purpose) {
  ResolvedRouter resolved{
      requested_router(request, stored.router), request.ep_ranks.value_or(stored.ep_ranks), {}};
  RouterSettings& router = resolved.router;
  if (!request.router.empty() && stored.router.family == Family::kTopK &&
      router.family == Family::kTopK) {
    keep_unnamed_options(request.router, stored.router, router);
    apply_cf(request, router);
  }
  const std::string change =
      fmt::format("{} in place of the stored {}", to_string(router), to_string(stored.router));
  check_family(stored.router, router, change, resolved.notes);
  check_gate(stored.router, router, change, force, resolved.notes);
  note_k(stored.router, router, change, purpose, resolved.notes);
  check_router(router, stored.experts);
  if (resolved.ep_ranks < 1 || stored.experts % resolved.ep_ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; use a divisor",
                    resolved.ep_ranks,
                    stored.experts);
  }
  if (router.family == Family::kTopK && router.fr && !router.capacity_factor) {
    resolved.notes.push_back(
        fmt::format("without a capacity +fr accepts every request: this is top-{}", router.k + 1));
  }
  return resolved;
}

}  // namespace moe::route
