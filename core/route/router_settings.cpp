// What follows from the settings of a router, for any family: its table says what is asked here.

#include "core/route/router_settings.h"

#include <cmath>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

// A number of an option as a double; nothing where it is none.
std::optional<double> number_of(const OptionValue& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return static_cast<double>(*whole);
  }
  const auto* number = std::get_if<double>(&value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

// preserves_function() of routers whose weights are not normalised.
FunctionPreservation unnormalised(const std::string& why, double gate_scale) {
  if (gate_scale == 1.0) {
    return {false, fmt::format("not preserved: {} (--gate-scale auto corrects the mean)", why)};
  }
  return {false,
          fmt::format("not preserved token by token: {}; gate_scale {:.6g} is there to correct the "
                      "mean",
                      why, gate_scale)};
}

}  // namespace

void check_ranges(const RouterSettings& settings, const std::string& where) {
  for (const auto& option : settings.family->options) {
    const OptionValue value = option.value.get(settings);
    const auto number = number_of(value);
    if (number && option.in_range != nullptr &&
        !(std::isfinite(*number) && option.in_range(*number))) {
      throw UserError("{}: {}", where,
                      fmt::format(fmt::runtime(option.out_of_range), value_text(option, value)));
    }
  }
}

void check_router(const RouterSettings& settings, int64_t experts) {
  for (const auto& option : settings.family->options) {
    const OptionValue value = option.value.get(settings);
    if (!option.too_many.empty() && number_of(value).value_or(0) > static_cast<double>(experts)) {
      throw UserError("{}", fmt::format(fmt::runtime(option.too_many), to_string(settings),
                                        value_text(option, value), experts));
    }
  }
}

void check_inference(const RouterSettings& settings, const std::string& mend) {
  if (!settings.family->no_inference.empty()) {
    throw UserError("router '{}' has no inference: {}; {}", to_string(settings),
                    settings.family->no_inference, mend);
  }
}

bool has_capacity(const RouterSettings& settings) {
  return settings.family->has_slots && settings.capacity_factor.has_value();
}

bool same_family(const RouterSettings& a, const RouterSettings& b) { return a.family == b.family; }

RouterSettings with_granularity(RouterSettings settings, int64_t granularity) {
  for (const auto& option : settings.family->options) {
    const OptionValue value = option.value.get(settings);
    if (!option.scales_with_granularity) {
      continue;
    }
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      option.value.set(settings, *whole * granularity);
    } else if (const auto* number = std::get_if<double>(&value)) {
      option.value.set(settings, *number * static_cast<double>(granularity));
    }
  }
  return settings;
}

RouterSettings generation_router(RouterSettings settings) {
  check_inference(settings, "generate with another router (--router top2)");
  return settings.family->for_generation == nullptr ? settings
                                                    : settings.family->for_generation(settings);
}

double default_lb_coef(const RouterSettings& settings) {
  return settings.bias_rate ? 0 : settings.family->load_balance_coef.value_or(0);
}

double default_entropy_coef(const RouterSettings& settings) {
  return settings.family->entropy_coef.value_or(0);
}

OwnArchitecture own_architecture(const RouterSettings& settings) {
  const RouterFamily& family = *settings.family;
  for (const auto& option : family.options) {
    const bool has_value = !std::holds_alternative<std::monostate>(option.value.get(settings));
    if (family.own.model_type.empty() && has_value && !option.own.model_type.empty()) {
      return option.own;
    }
  }
  return family.own;
}

bool weights_sum_to_one(const RouterSettings& settings) {
  return settings.family->unnormalised(settings).empty();
}

FunctionPreservation preserves_function(const RouterSettings& settings, double gate_scale) {
  if (!weights_sum_to_one(settings)) {
    return unnormalised(settings.family->unnormalised(settings), gate_scale);
  }
  if (gate_scale != 1.0) {
    return {false,
            fmt::format("not preserved: gate_scale {:.6g} multiplies weights that sum to 1 already",
                        gate_scale)};
  }
  if (!settings.capacity_factor) {
    return {true, "no token is dropped (cf=inf) and the gate weights of every token sum to 1"};
  }
  if (settings.ir) {
    return {
        true,
        "+ir serves every token that capacity drops, and the gate weights of every token sum to 1"};
  }
  return {false,
          "not preserved for a token that capacity drops from all its experts: it passes by the "
          "residual only (+ir or cf=inf serve every token)"};
}

}  // namespace moe::route
