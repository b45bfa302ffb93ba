#include "core/base/option.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moe {

namespace {

constexpr int64_t kMaxCount = int64_t{1} << 40;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string quoted_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const auto& text : texts) {
    list += (list.empty() ? "" : ", ") + toml_string(text);
  }
  return list.empty() ? "" : "[" + list + "]";
}

std::string quoted(const std::string& text) { return text.empty() ? "" : toml_string(text); }

// Returns the value of a member as TOML, or "" if it has none.
struct TomlText {
  template <typename Number>
  requires std::is_arithmetic_v<Number> std::string operator()(const Number* value) const {
    return fmt::format("{}", *value);
  }
  template <typename Text>
  requires std::is_convertible_v<Text, std::string> std::string operator()(
      const Text* value) const {
    return quoted(*value);
  }
  template <typename Number>
  std::string operator()(const std::optional<Number>* value) const {
    return value->has_value() ? fmt::format("{}", **value) : "";
  }
  template <typename Text>
  std::string operator()(const std::vector<Text>* value) const {
    return quoted_list({value->begin(), value->end()});
  }
  std::string operator()(const Choice& value) const { return quoted(value.get()); }
};

// Parses all of `text` as a finite Number. Returns false and changes nothing if that fails.
template <typename Number, typename To>
bool set_number(To& to, const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool is_number =
      error == std::errc() && stop == end && std::isfinite(static_cast<double>(number));
  if (is_number) {
    to = number;
  }
  return is_number;
}

std::string describe_range(const Range& range, double value) {
  const char* kind = range.is_whole ? "whole number" : "number";
  const double no_max = range.is_whole ? static_cast<double>(kMaxCount) : kInfinity;
  if (range.rule != nullptr) {
    return range.rule;
  }
  if (range.max < no_max || (range.is_whole && value > range.max)) {
    return fmt::format("must be a {} of {} to {}", kind, range.min, range.max);
  }
  if (range.min == 0 && !range.is_whole) {
    return range.is_open ? "must be a positive number" : "must be 0 or a positive number";
  }
  return fmt::format("must be a {} of at least {}", kind, range.min);
}

void check_value(const std::string& flag, const std::string& text, const Range& range,
                 double value) {
  USER_ERROR_IF(!holds(range, value), "{} {}: {}", flag, text, describe_range(range, value));
}

// Returns the digits of `text`, a decimal integer. Throws UserError with the limits of Integer and
// of the option's range if `text` is no Integer.
template <typename Integer>
std::string parse_integer(const Option& option, const std::string& text) {
  if (Integer value = 0; set_number<Integer>(value, text)) {
    return fmt::format("{}", value);
  }
  Integer min = std::numeric_limits<Integer>::min(), max = std::numeric_limits<Integer>::max();
  const Range& range = option.range;
  if (range.is_checked && range.min > static_cast<double>(min)) {
    min = static_cast<Integer>(range.is_open ? range.min + 1 : range.min);
  }
  if (range.is_checked && range.max < static_cast<double>(max)) {
    max = static_cast<Integer>(range.max);
  }
  throw UserError("{} {}: must be a whole number of {} to {}", flag_name(option), text, min, max);
}

}  // namespace

Range whole_from(int64_t min) { return whole_between(min, kMaxCount); }

Range whole_between(int64_t min, int64_t max) {
  return {.min = static_cast<double>(min),
          .max = static_cast<double>(max),
          .is_checked = true,
          .is_whole = true};
}

Range seed_range() { return whole_between(0, std::numeric_limits<int64_t>::max()); }

Range number_from(double min) { return number_between(min, kInfinity); }

Range positive_number() {
  return {.min = 0, .max = kInfinity, .is_checked = true, .is_open = true};
}

Range number_between(double min, double max) {
  return {.min = min, .max = max, .is_checked = true};
}

std::string value_text(const Member& member) {
  if (const auto* text = std::get_if<std::string*>(&member)) {
    return **text;
  }
  if (const auto* word = std::get_if<Choice>(&member)) {
    return word->get();
  }
  return std::visit(TomlText(), member);
}

bool set_value(const Member& member, const std::string& text) {
  return std::visit(
      [&text](const auto& target) {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, bool*>) {
          *target = text == "true" || (text != "false" && *target);
          return text == "true" || text == "false";
        } else if constexpr (std::is_same_v<Target, std::string*>) {
          *target = text;
          return true;
        } else if constexpr (std::is_same_v<Target, Choice>) {
          const bool is_known = std::ranges::find(target.words, text) != target.words.end();
          if (is_known) {
            target.set(text);
          }
          return is_known;
        } else if constexpr (std::is_same_v<Target, std::optional<int64_t>*> ||
                             std::is_same_v<Target, std::optional<double>*>) {
          if (text.empty()) {
            target->reset();
            return true;
          }
          return set_number<typename std::remove_pointer_t<Target>::value_type>(*target, text);
        } else if constexpr (std::is_arithmetic_v<std::remove_pointer_t<Target>>) {
          return set_number<std::remove_pointer_t<Target>>(*target, text);
        } else {
          return false;
        }
      },
      member);
}

std::optional<double> numeric_value(const Member& member) {
  return std::visit(
      [](const auto& value) -> std::optional<double> {
        if constexpr (requires { static_cast<double>(*value); }) {
          return static_cast<double>(*value);
        } else if constexpr (requires { static_cast<double>(**value); }) {
          return value->has_value() ? std::optional<double>(**value) : std::nullopt;
        } else {
          return std::nullopt;
        }
      },
      member);
}

bool holds(const Range& range, double value) {
  const bool inside = range.is_open ? range.min < value && value < range.max
                                    : range.min <= value && value <= range.max;
  return std::isfinite(value) && inside;
}

Option with_commas(Option option) {
  option.is_comma_separated = true;
  return option;
}

Options concat(std::vector<Options> parts) {
  Options all;
  for (auto& part : parts) {
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

Choice one_of(const char* name, std::string& member, const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& word : words) {
    values.emplace_back(word, word);
  }
  return choice(name, member, std::move(values));
}

std::string flag_name(const Option& option) { return std::string("--") + option.name; }

std::string help_line(const Option& option) {
  std::string fallback = option.fallback;
  if (fallback.empty() && !option.is_required && !std::holds_alternative<bool*>(option.member)) {
    fallback = std::visit(TomlText(), option.member);
    std::erase_if(fallback, [](char c) { return c == '"' || c == '[' || c == ']'; });
  }
  return fallback.empty() ? option.help
                          : fmt::format("{} (default: {}{})", option.help, fallback,
                                        option.source.empty() ? "" : ", as " + option.source);
}

void check_ranges(const Options& options) {
  for (const auto& option : options) {
    const auto value = numeric_value(option.member);
    if (value && option.range.is_checked) {
      check_value(flag_name(option), std::visit(TomlText(), option.member), option.range, *value);
    }
  }
}

void check_range(const std::string& flag, const std::string& number, const Range& range) {
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (end != number.c_str() && *end == '\0') {
    check_value(flag, number, range, value);
  }
}

std::string integer_text(const Option& option, const std::string& text) {
  return std::visit(
      [&](const auto& member) -> std::string {
        using Type = std::decay_t<decltype(member)>;
        if constexpr (std::is_same_v<Type, std::optional<int64_t>*>) {
          return parse_integer<int64_t>(option, text);
        } else if constexpr (std::is_same_v<Type, int*> || std::is_same_v<Type, int64_t*> ||
                             std::is_same_v<Type, uint64_t*>) {
          return parse_integer<std::remove_pointer_t<Type>>(option, text);
        } else {
          return text;
        }
      },
      option.member);
}

std::string toml_lines(const Options& options) {
  std::string lines;
  for (const auto& option : options) {
    if (!option.is_recorded || (option.is_written && !option.is_written())) {
      continue;
    }
    const std::string value = std::visit(TomlText(), option.member);
    if (!value.empty()) {
      lines += fmt::format("{} = {}\n", option.name, value);
    }
  }
  return lines;
}

std::set<std::string> changeable_keys(const Options& options) {
  std::set<std::string> keys;
  for (const auto& option : options) {
    if (option.is_recorded && !option.changes_numbers) {
      keys.insert(option.name);
    }
  }
  return keys;
}

void throw_unknown_word(const char* name, const std::string& word,
                        const std::vector<std::string>& known) {
  throw UserError("--{} '{}' is unknown; known: {}", name, word, fmt::join(known, ", "));
}

std::string toml_string(const std::string& text) {
  return json_text(text);  // TOML has the escapes of JSON
}

}  // namespace moe
