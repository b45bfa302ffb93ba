// What every reader and printer of options does with one of them.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

template <typename Number>
std::optional<OptionValue> parse_number(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool is_number =
      error == std::errc() && stop == end && std::isfinite(static_cast<double>(number));
  return is_number ? std::optional<OptionValue>(number) : std::nullopt;
}

std::optional<OptionValue> parse_word(const std::string& text, const char* first,
                                      const char* second) {
  return text == first || text == second ? std::optional<OptionValue>(text == second)
                                         : std::nullopt;
}

}  // namespace

RouterOption capacity_option() {
  return {.name = "cf",
          .key = "capacity_factor",
          .value = member(&RouterSettings::capacity_factor),
          .takes = "a number above 0, or inf",
          .empty_word = "inf",
          .help =
              "capacity factor: slots an expert has for a rank of T_r tokens, in units of "
              "T_r / E; inf: as many as it has tokens",
          .when_no_key =
              "'capacity_factor' is missing; give a number above 0, or null for "
              "dropless",
          .in_range = [](double v) { return v > 0 && v <= kMaxCapacityFactor; },
          .out_of_range =
              "the capacity factor cf must be above 0 and at most 1048576, is {}; "
              "cf=inf drops nothing",
          .scales_with_granularity = true};
}

RouterOption k_option() {
  return {.name = "k",
          .key = "k",
          .value = member(&RouterSettings::k),
          .takes = "a whole number from 1",
          .in_range = [](double v) { return v >= 1 && v <= kMaxExperts; },
          .out_of_range = "k must be a whole number from 1 to the number of experts, is {}",
          .too_many =
              "router '{}' asks for {} experts per token, the layers have {}: give a "
              "smaller k or more experts",
          .scales_with_granularity = true};
}

const RouterOption* find_option(const RouterFamily& family, const std::string& name) {
  const auto option = std::find_if(family.options.begin(), family.options.end(),
                                   [&](const auto& each) { return each.name == name; });
  return option == family.options.end() ? nullptr : &*option;
}

std::optional<OptionValue> parse_value(const RouterOption& option, const std::string& text) {
  if (option.value.may_be_empty && !option.empty_word.empty() && text == option.empty_word) {
    return OptionValue();
  }
  switch (option.value.form) {
    case OptionForm::kWhole:
      return parse_number<int64_t>(text);
    case OptionForm::kNumber:
      return parse_number<double>(text);
    case OptionForm::kSwitch:
      return parse_word(text, "off", "on");
    case OptionForm::kWords:
      return parse_word(text, option.words[0].c_str(), option.words[1].c_str());
  }
  MOE_CHECK(false, "form {}", static_cast<int>(option.value.form));
}

std::string value_text(const RouterOption& option, const OptionValue& value) {
  if (const auto* chosen = std::get_if<bool>(&value)) {
    return option.value.form == OptionForm::kWords ? option.words[*chosen ? 1 : 0]
           : *chosen                               ? "on"
                                                   : "off";
  }
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return fmt::format("{}", *whole);
  }
  const auto* number = std::get_if<double>(&value);
  return number == nullptr ? option.empty_word : fmt::format("{}", *number);
}

OptionValue default_value(const RouterOption& option, const RouterSettings& settings) {
  return option.default_value != nullptr ? option.default_value(settings)
                                         : option.value.get(start_of(*settings.family));
}

RouterSettings start_of(const RouterFamily& family) {
  RouterSettings settings;
  settings.family = &family;
  if (family.start != nullptr) {
    family.start(settings);
  }
  return settings;
}

}  // namespace moe::route
