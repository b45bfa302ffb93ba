#include "core/eval/router_override.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/base/error.h"

namespace moe::eval {
namespace {

using route::Family;
using route::GateNorm;
using route::RouterSettings;

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
      return route::parse_router("top1:cf=" + cf).capacity_factor;
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
  router.straight_through = stored.straight_through;
  router.lb_count = stored.lb_count;
}

void apply_cf(const RouterOverride& given, RouterSettings& router) {
  if (given.cf.empty()) {
    return;
  }
  const auto cf = capacity_factor(given.cf);
  if (router.family != Family::kTopK) {
    throw UserError("--cf {}: only top-k routers have a capacity, this one is {}",
                    given.cf,
                    route::to_string(router));
  }
  if (names_option(given.router, "cf") && router.capacity_factor != cf) {
    throw UserError("--cf {} contradicts --router {}; give one of them", given.cf, given.router);
  }
  router.capacity_factor = cf;
}

// The rows of SPEC section 10's table.
std::vector<std::string> check_override(const RouterSettings& stored,
                                        const RouterSettings& router,
                                        bool force) {
  std::vector<std::string> notes;
  const std::string change = fmt::format(
      "{} in place of the stored {}", route::to_string(router), route::to_string(stored));
  if ((stored.family == Family::kRelu) != (router.family == Family::kRelu)) {
    throw UserError(
        "--router: {}: ReLU and softmax logits mean different things; choose a router of the "
        "stored family",
        change);
  }
  if (stored.family != router.family) {
    notes.push_back(
        change +
        ": the same softmax scores, but weights that sum to another value; expect other quality");
  } else if (router.family == Family::kTopK && stored.gate_norm != router.gate_norm) {
    if (!force) {
      throw UserError(
          "--router: {}: another gate rescales every MoE output; add --force if that is meant",
          change);
    }
    notes.push_back(change + ": another gate rescales every MoE output");
  }
  if (stored.family == router.family && stored.k != router.k) {
    notes.push_back(
        router.family == Family::kRelu
            ? "relu: k has no effect when a model is only evaluated"
            : fmt::format("{}: k was {} in training; the capacity factor is kept unless given",
                          change,
                          stored.k));
  }
  return notes;
}

}  // namespace

ResolvedRouter resolve_router(const model::ModelConfig& config, const RouterOverride& given) {
  if (!config.moe) {
    if (given.any()) {
      throw UserError(
          "this model is dense, it has no router; leave out --router, --cf and --ep-ranks");
    }
    return {};
  }
  const RouterSettings& stored = config.moe->router;
  ResolvedRouter resolved{stored, given.ep_ranks.value_or(config.moe->ep_ranks), {}};
  if (!given.router.empty()) {
    resolved.router = route::parse_router(given.router);
    if (stored.family == Family::kTopK && resolved.router.family == Family::kTopK) {
      keep_unnamed_options(given.router, stored, resolved.router);
    }
  }
  apply_cf(given, resolved.router);
  resolved.notes = check_override(stored, resolved.router, given.force);
  const int64_t experts = config.moe->experts;
  route::check_router(resolved.router, experts);
  if (resolved.ep_ranks < 1 || experts % resolved.ep_ranks != 0) {
    throw UserError(
        "--ep-ranks {} does not divide the {} experts; use a divisor", resolved.ep_ranks, experts);
  }
  if (resolved.router.family == Family::kTopK && resolved.router.fr &&
      !resolved.router.capacity_factor) {
    resolved.notes.push_back(fmt::format(
        "without a capacity +fr accepts every request: this is top-{}", resolved.router.k + 1));
  }
  return resolved;
}

}  // namespace moe::eval
