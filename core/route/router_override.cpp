#include "core/route/router_override.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/base/error.h"

namespace moe::route {
namespace {

// Whether the text of --router names the option itself.
bool names_option(std::string text, std::string_view option) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
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

// Between routers of one family: what --router leaves out is not changed. +ir, +fr, k, p and max
// are always said.
void keep_unnamed_options(const std::string& text, const RouterSettings& stored,
                          RouterSettings& router) {
  const auto keep = [&](const char* option, auto RouterSettings::*member) {
    if (!names_option(text, option)) {
      router.*member = stored.*member;
    }
  };
  if (router.family == Family::kTopK) {
    keep("cf", &RouterSettings::capacity_factor);
    keep("gate", &RouterSettings::gate_norm);
    keep("order", &RouterSettings::slot_order);
    keep("st", &RouterSettings::straight_through);
    keep("lb", &RouterSettings::lb_count);
  } else if (router.family == Family::kRelu) {
    keep("lambda0", &RouterSettings::lambda0);
    keep("mult", &RouterSettings::lambda_multiplier);
    keep("l1", &RouterSettings::l1_refined);
  }
}

void apply_cf(const RouterRequest& given, RouterSettings& router) {
  if (given.cf.empty()) {
    return;
  }
  const auto cf = capacity_factor(given.cf);
  if (router.family != Family::kTopK) {
    throw UserError("--cf {}: only top-k routers have a capacity, this one is {}", given.cf,
                    to_string(router));
  }
  if (names_option(given.router, "cf") && router.capacity_factor != cf) {
    throw UserError("--cf {} contradicts --router {}; give one of them", given.cf, given.router);
  }
  router.capacity_factor = cf;
}

// Another family: refused, or noted.
void check_family(const RouterSettings& stored, const RouterSettings& router,
                  const std::string& change, std::vector<std::string>& notes) {
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
void check_gate(const RouterSettings& stored, const RouterSettings& router,
                const std::string& change, bool force, std::vector<std::string>& notes) {
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

void note_k(const RouterSettings& stored, const RouterSettings& router, const std::string& change,
            Purpose purpose, std::vector<std::string>& notes) {
  if (stored.family != router.family || stored.k == router.k) {
    return;
  }
  if (router.family == Family::kTopK) {
    notes.push_back(
        fmt::format("{}: k was {}; the capacity factor is kept unless given", change, stored.k));
  } else if (purpose == Purpose::kTrain) {
    notes.push_back(fmt::format("{}: k moves the target sparsity", change));
  }
}

// Evaluation does not read these: the stored ones stay, so that results name a router that was.
void ignore_training_options(const RouterSettings& stored, RouterSettings& router,
                             const std::string& change, std::vector<std::string>& notes) {
  if (stored.family != router.family) {
    return;
  }
  std::vector<std::string> ignored;
  const auto put_back = [&](const char* option, auto RouterSettings::*member) {
    if (router.*member != stored.*member) {
      router.*member = stored.*member;
      ignored.emplace_back(option);
    }
  };
  put_back("st", &RouterSettings::straight_through);
  put_back("lb", &RouterSettings::lb_count);
  put_back("lambda0", &RouterSettings::lambda0);
  put_back("mult", &RouterSettings::lambda_multiplier);
  put_back("l1", &RouterSettings::l1_refined);
  if (router.family == Family::kRelu) {
    put_back("k", &RouterSettings::k);
  }
  if (!ignored.empty()) {
    notes.push_back(fmt::format("{}: {} {} in training only, ignored here", change,
                                fmt::join(ignored, ", "),
                                ignored.size() == 1 ? "matters" : "matter"));
  }
}

// gate_scale was measured for the stored gates; other gates have another sum.
void note_gate_scale(const StoredRouter& stored, const RouterSettings& router,
                     const std::string& change, std::vector<std::string>& notes) {
  const RouterSettings& old = stored.router;
  const bool same_gates =
      old.family == router.family && old.p == router.p && old.max_experts == router.max_experts &&
      old.gate_norm == router.gate_norm && (old.k == router.k || router.family == Family::kRelu);
  if (stored.gate_scale != 1.0 && !same_gates) {
    notes.push_back(
        fmt::format("warning: {}: the folder's gate_scale {:.6g} was chosen for the stored "
                    "router and stays",
                    change, stored.gate_scale));
  }
}

}  // namespace

RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback) {
  RouterSettings router = request.router.empty() ? fallback : parse_router(request.router);
  apply_cf(request, router);
  return router;
}

ResolvedRouter override_router(const StoredRouter& stored, const RouterRequest& request, bool force,
                               Purpose purpose) {
  ResolvedRouter resolved{
      requested_router(request, stored.router), request.ep_ranks.value_or(stored.ep_ranks), {}};
  RouterSettings& router = resolved.router;
  if (!request.router.empty() && stored.router.family == router.family) {
    keep_unnamed_options(request.router, stored.router, router);
    apply_cf(request, router);
  }
  resolved.names_lambda0 = names_option(request.router, "lambda0");
  const std::string change =
      fmt::format("{} in place of the stored {}", to_string(router), to_string(stored.router));
  check_family(stored.router, router, change, resolved.notes);
  check_gate(stored.router, router, change, force, resolved.notes);
  note_k(stored.router, router, change, purpose, resolved.notes);
  note_gate_scale(stored, router, change, resolved.notes);
  check_router(router, stored.experts);
  if (purpose == Purpose::kEvaluate) {
    ignore_training_options(stored.router, router, change, resolved.notes);
  }
  if (resolved.ep_ranks < 1 || stored.experts % resolved.ep_ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; use a divisor",
                    resolved.ep_ranks, stored.experts);
  }
  if (router.family == Family::kTopK && router.fr && !router.capacity_factor) {
    resolved.notes.push_back(
        fmt::format("without a capacity +fr accepts every request: this is top-{}", router.k + 1));
  }
  return resolved;
}

}  // namespace moe::route
