// What follows from the settings of a router, for any family: its table says what is asked here.

#include "core/route/router_settings.h"

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

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

std::string option_text(const RouterOption& option) {
  const std::string text = value_text(option.option.member);
  if (std::holds_alternative<bool*>(option.option.member)) {
    return text == "true" ? "on" : "off";
  }
  return text.empty() ? option.empty_word : text;
}

bool set_option(const RouterOption& option, const std::string& text) {
  const Member& member = option.option.member;
  if (std::holds_alternative<bool*>(member)) {
    return set_value(member, text == "on" ? "true" : text == "off" ? "false" : text + "?");
  }
  return !text.empty() && set_value(member, text == option.empty_word ? "" : text);
}

RouterSettings start_of(const RouterFamily& family) {
  RouterSettings settings;
  settings.family = &family;
  if (family.start != nullptr) {
    family.start(settings);
  }
  return settings;
}

RouterSettings defaults_of(const RouterSettings& settings) {
  RouterSettings defaults = start_of(*settings.family);
  defaults.k = settings.k;
  if (settings.family->derive != nullptr) {
    settings.family->derive(defaults);
  }
  return defaults;
}

void check_ranges(const RouterSettings& settings, const std::string& where) {
  RouterSettings read = settings;
  for (const auto& option : options_of(read)) {
    const Range& range = option.option.range;
    const auto number = number_of(option.option.member);
    if (number && range.is_checked && !holds(range, *number)) {
      throw UserError("{}: {}", where, fmt::format(fmt::runtime(range.rule), option_text(option)));
    }
  }
}

void check_router(const RouterSettings& settings, int64_t experts) {
  RouterSettings read = settings;
  for (const auto& option : options_of(read)) {
    const auto number = number_of(option.option.member);
    const auto sentence = option.sentences.find(Sentence::kTooMany);
    if (sentence != option.sentences.end() && number.value_or(0) > static_cast<double>(experts)) {
      throw UserError("{}", fmt::format(fmt::runtime(sentence->second), to_string(settings),
                                        option_text(option), experts));
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
  for (const auto& option : options_of(settings)) {
    if (!option.has(kScalesWithGranularity)) {
      continue;
    }
    const Member& member = option.option.member;
    if (auto* const* whole = std::get_if<int64_t*>(&member)) {
      **whole *= granularity;
    } else if (const auto number = number_of(member)) {
      set_value(member, fmt::format("{}", *number * static_cast<double>(granularity)));
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
  return family.is_own == nullptr || family.is_own(settings) ? family.own : OwnArchitecture();
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
