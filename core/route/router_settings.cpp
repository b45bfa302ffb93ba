// What the settings of a router may be and what follows from them; the grammar is in
// router_grammar.cpp, config.json in router_json.cpp. Ranges are checked here for both ways in.

#include "core/route/router_settings.h"

#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"

namespace moe::route {
namespace {

constexpr int64_t kMaxExperts = 1 << 20;        // beyond any model; keeps T * k far from overflow
constexpr double kMaxCapacityFactor = 1 << 20;  // a larger one is a slip: cf=inf is dropless

}  // namespace

void check_ranges(const RouterSettings& s, const std::string& where) {
  if (s.family != Family::kTopP && (s.k < 1 || s.k > kMaxExperts)) {
    throw UserError(
        "{}: k must be a whole number from 1 to the number of experts, is {}", where, s.k);
  }
  if (s.capacity_factor && !(*s.capacity_factor > 0 && *s.capacity_factor <= kMaxCapacityFactor)) {
    throw UserError(
        "{}: the capacity factor cf must be above 0 and at most {}, is {}; cf=inf drops nothing",
        where,
        kMaxCapacityFactor,
        *s.capacity_factor);
  }
  if (!(s.p >= 0 && s.p <= 1)) {
    throw UserError("{}: p is a share of probability from 0 to 1, is {}", where, s.p);
  }
  if (s.max_experts && (*s.max_experts < 1 || *s.max_experts > kMaxExperts)) {
    throw UserError("{}: max must be a whole number from 1 to the number of experts, is {}",
                    where,
                    *s.max_experts);
  }
  if (!(s.lambda0 >= 0 && std::isfinite(s.lambda0))) {
    throw UserError("{}: lambda0 must be a number from 0, is {}", where, s.lambda0);
  }
  if (!(s.lambda_multiplier >= 1 && std::isfinite(s.lambda_multiplier))) {
    throw UserError(
        "{}: the multiplier of lambda must be a number from 1, is {}", where, s.lambda_multiplier);
  }
}

std::string to_string(const RouterSettings& s) {
  const RouterSettings defaults;
  std::vector<std::string> options;
  if (s.family == Family::kTopP) {
    return fmt::format(
        "topp:{}{}", s.p, s.max_experts ? fmt::format(",max={}", *s.max_experts) : "");
  }
  if (s.family == Family::kRelu) {
    options.push_back(fmt::format("relu:k={}", s.k));
    if (s.lambda0 != defaults.lambda0) {
      options.push_back(fmt::format("lambda0={}", s.lambda0));
    }
    if (s.lambda_multiplier != defaults.lambda_multiplier) {
      options.push_back(fmt::format("mult={}", s.lambda_multiplier));
    }
    if (!s.l1_refined) {
      options.emplace_back("l1=plain");
    }
    return fmt::format("{}", fmt::join(options, ","));
  }
  if (!s.capacity_factor) {
    options.emplace_back("cf=inf");
  } else if (*s.capacity_factor != static_cast<double>(s.k)) {
    options.push_back(fmt::format("cf={}", *s.capacity_factor));
  }
  const auto add_unless = [&](bool is_default, const char* option) {
    if (!is_default) {
      options.emplace_back(option);
    }
  };
  add_unless(s.gate_norm == defaults.gate_norm, "gate=none");
  add_unless(s.straight_through, "st=off");
  add_unless(s.lb_count == defaults.lb_count, "lb=selected");
  add_unless(s.slot_order == defaults.slot_order, "order=score");
  return fmt::format("top{}{}{}{}{}",
                     s.k,
                     s.ir ? "+ir" : "",
                     s.fr ? "+fr" : "",
                     options.empty() ? "" : ":",
                     fmt::join(options, ","));
}

void check_router(const RouterSettings& settings, int64_t experts) {
  if (settings.family != Family::kTopP && settings.k > experts) {
    throw UserError(
        "router '{}' asks for {} experts per token, the layers have {}: give a smaller k or more "
        "experts",
        to_string(settings),
        settings.k,
        experts);
  }
  if (settings.max_experts && *settings.max_experts > experts) {
    throw UserError(
        "router '{}' keeps up to {} experts per token, the layers have {}: give a smaller max",
        to_string(settings),
        *settings.max_experts,
        experts);
  }
}

double default_lb_coef(const RouterSettings& settings) {
  return settings.family == Family::kRelu ? 0 : 1e-2;
}

double default_entropy_coef(const RouterSettings& settings) {
  return settings.family == Family::kTopP ? 1e-4 : 0;
}

Preserves preserves_function(const RouterSettings& settings) {
  if (settings.family == Family::kRelu) {
    return {false,
            "not preserved: ReLU gates are not normalised, the weights of a token sum to anything "
            "from 0 up"};
  }
  if (settings.family == Family::kTopP) {
    return {false,
            "not preserved: top-p weights are probabilities that sum to p or more, not to 1 "
            "(--gate-scale auto "
            "corrects the mean)"};
  }
  if (settings.gate_norm == GateNorm::kNone) {
    return {false,
            "not preserved: gate=none leaves weights that do not sum to 1 (gate=selected does)"};
  }
  if (!settings.capacity_factor) {
    return {true, "preserved: nothing is dropped (cf=inf) and the weights of every token sum to 1"};
  }
  if (settings.ir) {
    return {true,
            "preserved: +ir serves every token that capacity dropped, and all weights sum to 1"};
  }
  return {false,
          "preserved for every token that an expert accepts, weights sum to 1; a token that "
          "capacity drops from "
          "all its experts passes by the residual only (+ir or cf=inf serve every token)"};
}

}  // namespace moe::route
