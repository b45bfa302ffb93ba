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

// The options of a router in the order of the grammar: all of them, or those that differ from the
// defaults.
class OptionTexts {
 public:
  explicit OptionTexts(bool every_option) : every_option_(every_option) {}

  template <typename Value>
  void add(const char* name, const Value& value, bool is_default) {
    if (every_option_ || !is_default) {
      texts_.push_back(fmt::format("{}={}", name, value));
    }
  }
  std::string joined(const char* before) const {
    return texts_.empty() ? "" : fmt::format("{}{}", before, fmt::join(texts_, ","));
  }

 private:
  bool every_option_;
  std::vector<std::string> texts_;
};

std::string top_k_text(const RouterSettings& s, bool every_option) {
  const RouterSettings defaults;
  OptionTexts options(every_option);
  options.add("cf", s.capacity_factor ? fmt::format("{}", *s.capacity_factor) : std::string("inf"),
              s.capacity_factor == static_cast<double>(s.k));
  options.add("gate", s.gate_norm == GateNorm::kSelected ? "selected" : "none",
              s.gate_norm == defaults.gate_norm);
  options.add("st", s.straight_through ? "on" : "off", s.straight_through);
  options.add("lb", s.lb_count == LbCount::kFirst ? "first" : "selected",
              s.lb_count == defaults.lb_count);
  options.add("order", s.slot_order == SlotOrder::kChoice ? "choice" : "score",
              s.slot_order == defaults.slot_order);
  return fmt::format("top{}{}{}{}", s.k, s.ir ? "+ir" : "", s.fr ? "+fr" : "", options.joined(":"));
}

std::string relu_text(const RouterSettings& s, bool every_option) {
  const RouterSettings defaults;
  OptionTexts options(every_option);
  options.add("lambda0", s.lambda0, s.lambda0 == defaults.lambda0);
  options.add("mult", s.lambda_multiplier, s.lambda_multiplier == defaults.lambda_multiplier);
  options.add("l1", s.l1_refined ? "refined" : "plain", s.l1_refined);
  return fmt::format("relu:k={}{}", s.k, options.joined(","));
}

std::string text_of(const RouterSettings& s, bool every_option) {
  switch (s.family) {
    case Family::kTopK:
      return top_k_text(s, every_option);
    case Family::kTopP:  // p and max are all it has
      return fmt::format("topp:{}{}", s.p,
                         s.max_experts ? fmt::format(",max={}", *s.max_experts) : "");
    case Family::kRelu:
      return relu_text(s, every_option);
  }
  MOE_CHECK(false, "router family {}", static_cast<int>(s.family));
}

// preserves_function() of routers whose weights are not normalised.
Preserves unnormalised(const RouterSettings& settings, double gate_scale) {
  std::string what;
  switch (settings.family) {
    case Family::kRelu:
      what = "ReLU gates are not normalised, the weights of a token sum to anything from 0 up";
      break;
    case Family::kTopP:
      what = "top-p weights are probabilities that sum to p or more, not to 1";
      break;
    case Family::kTopK:
      what = "gate=none leaves weights that do not sum to 1 (gate=selected does)";
      break;
  }
  if (gate_scale == 1.0) {
    return {false, fmt::format("not preserved: {} (--gate-scale auto corrects the mean)", what)};
  }
  return {false,
          fmt::format("not preserved token by token: {}; gate_scale {:.6g} is there to correct the "
                      "mean",
                      what, gate_scale)};
}

}  // namespace

void check_ranges(const RouterSettings& s, const std::string& where) {
  if (s.family != Family::kTopP && (s.k < 1 || s.k > kMaxExperts)) {
    throw UserError("{}: k must be a whole number from 1 to the number of experts, is {}", where,
                    s.k);
  }
  if (s.capacity_factor && !(*s.capacity_factor > 0 && *s.capacity_factor <= kMaxCapacityFactor)) {
    throw UserError(
        "{}: the capacity factor cf must be above 0 and at most {}, is {}; cf=inf drops nothing",
        where, kMaxCapacityFactor, *s.capacity_factor);
  }
  if (!(s.p >= 0 && s.p <= 1)) {
    throw UserError("{}: p is a share of probability from 0 to 1, is {}", where, s.p);
  }
  if (s.max_experts && (*s.max_experts < 1 || *s.max_experts > kMaxExperts)) {
    throw UserError("{}: max must be a whole number from 1 to the number of experts, is {}", where,
                    *s.max_experts);
  }
  if (!(s.lambda0 >= 0 && std::isfinite(s.lambda0))) {
    throw UserError("{}: lambda0 must be a number from 0, is {}", where, s.lambda0);
  }
  if (!(s.lambda_multiplier >= 1 && std::isfinite(s.lambda_multiplier))) {
    throw UserError("{}: the multiplier of lambda must be a number from 1, is {}", where,
                    s.lambda_multiplier);
  }
}

std::string to_string(const RouterSettings& settings) {
  return text_of(settings, /*every_option=*/false);
}

std::string to_full_string(const RouterSettings& settings) {
  return text_of(settings, /*every_option=*/true);
}

void check_router(const RouterSettings& settings, int64_t experts) {
  if (settings.family != Family::kTopP && settings.k > experts) {
    throw UserError(
        "router '{}' asks for {} experts per token, the layers have {}: give a smaller k or more "
        "experts",
        to_string(settings), settings.k, experts);
  }
  if (settings.max_experts && *settings.max_experts > experts) {
    throw UserError(
        "router '{}' keeps up to {} experts per token, the layers have {}: give a smaller max",
        to_string(settings), *settings.max_experts, experts);
  }
}

double default_lb_coef(const RouterSettings& settings) {
  return settings.family == Family::kRelu ? 0 : 1e-2;
}

double default_entropy_coef(const RouterSettings& settings) {
  return settings.family == Family::kTopP ? 1e-4 : 0;
}

bool weights_sum_to_one(const RouterSettings& settings) {
  return settings.family == Family::kTopK && settings.gate_norm == GateNorm::kSelected;
}

Preserves preserves_function(const RouterSettings& settings, double gate_scale) {
  if (!weights_sum_to_one(settings)) {
    return unnormalised(settings, gate_scale);
  }
  if (gate_scale != 1.0) {
    return {false,
            fmt::format("not preserved: gate_scale {:.6g} multiplies weights that sum to 1 already",
                        gate_scale)};
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
