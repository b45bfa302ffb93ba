#include "core/route/router.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <type_traits>

#include "core/base/error.h"
#include "core/route/routers/all.h"

namespace moe::route {

namespace {

using Strings = std::vector<std::string>;

template <typename... Router>
std::deque<RouterFamily> make_families(std::type_identity<std::tuple<Router...>>) {
  return {Router::family()...};
}

std::deque<RouterFamily>& families() {
  static std::deque<RouterFamily> all = make_families(std::type_identity<AllRouters>());
  return all;
}

// Returns the options of the family that are written at `position`, bound to `settings`.
RouterOptions options_at(RouterSettings& settings, OptionPosition position) {
  RouterOptions options = router_options(settings);
  std::erase_if(options, [&](const auto& option) { return option.position != position; });
  return options;
}

// Returns the end of a message about an unknown name: did_you_mean() if one of `names` is similar,
// else ".", then the list `known`.
std::string suggestion(const std::string& unknown, const Strings& names, const Strings& known,
                       const char* kind = "Known") {
  const std::string nearest = did_you_mean(unknown, names);
  return fmt::format("{} {}: {}", nearest.empty() ? "." : nearest, kind, fmt::join(known, ", "));
}

Strings split(const std::string& text, char separator) {
  Strings parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

// Parts of "top2+ir:cf=1.5,gate=none".
struct RouterWords {
  std::string head;   // "top2+ir"
  std::string name;   // "top2"
  Strings modifiers;  // "ir"
  Strings options;    // "cf=1.5", "gate=none"
};

RouterWords split_router(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string head = text.substr(0, colon);
  const Strings parts = split(head, '+');
  RouterWords words{head, parts[0], {parts.begin() + 1, parts.end()}, {}};
  if (colon != std::string::npos) {
    words.options = split(text.substr(colon + 1), ',');
  }
  return words;
}

// Returns the family whose word is words.name, followed by a number if the family has an option at
// kHead. Throws UserError if there is none.
const RouterFamily& find_family(const RouterWords& words, const std::string& where) {
  Strings names, forms;
  for (const auto& family : router_families()) {
    RouterSettings settings = default_settings(family);
    const char* digits = options_at(settings, OptionPosition::kHead).empty() ? "" : "0123456789";
    if (words.name.starts_with(family.word) &&
        words.name.find_first_not_of(digits, family.word.size()) == std::string::npos) {
      return family;
    }
    for (const auto& example : family.examples) {
      names.push_back(split_router(example).name);
    }
    forms.push_back(family.forms);
  }
  throw UserError("{}: unknown router '{}'{}", where, words.head,
                  suggestion(words.head, names, forms, "Known forms"));
}

// Sets a required option; `text` is nullptr if the option is missing. Throws UserError if it is
// missing or invalid.
void set_required(const RouterOption& option, const std::string* text, const std::string& where,
                  const std::string& detail, const RouterSettings& settings) {
  USER_ERROR_IF(text == nullptr || !set_option(option, *text), "{}: '{}' {}{}", where,
                settings.family->word, option.messages.at(OptionMessage::kMissing), detail);
}

// Sets the options of `position` from words "ir" (kModifier) or "cf=1.5" (kNamed). Throws UserError
// for unknown, repeated, invalid and missing options.
void set_options(const Strings& words, OptionPosition position, const std::string& where,
                 RouterSettings& settings) {
  const bool is_modifier = position == OptionPosition::kModifier;
  const std::string plus = is_modifier ? "+" : "";
  const RouterOptions options = options_at(settings, position);
  Strings names;
  for (const auto& option : options) {
    names.push_back(plus + option.name);
  }
  std::set<std::string> seen;
  for (const auto& word : words) {
    const size_t equals = is_modifier ? std::string::npos : word.find('=');
    const std::string name = plus + word.substr(0, equals);
    const auto found = std::ranges::find(names, name);
    USER_ERROR_IF(found == names.end(), "{}: unknown {} '{}'{}", where,
                  is_modifier ? "modifier" : "option", plus + word, suggestion(name, names, names));
    USER_ERROR_IF(!seen.insert(name).second, "{}: '{}' is given twice, give it once", where, name);
    const RouterOption& option = options[found - names.begin()];
    const std::string value = is_modifier                   ? "on"
                              : equals == std::string::npos ? ""
                                                            : word.substr(equals + 1);
    USER_ERROR_IF(!set_option(option, value), "{}: '{}' is not understood, '{}=' takes {}", where,
                  word, name, option.values);
  }
  for (const auto& option : options) {
    if (option.is_required() && !seen.contains(option.name)) {
      set_required(option, nullptr, where, "", settings);
    }
  }
}

// Returns the value of an option as text of --router.
std::string option_text(const RouterOption& option) {
  const std::string text = value_text(option.member);
  if (std::holds_alternative<bool*>(option.member)) {
    return text == "true" ? "on" : "off";
  }
  return text.empty() ? option.empty_word : text;
}

// Returns the help line of an option that is bound to default settings: name, values, default and
// help, as in "      cf=       a number above 0, or inf (k): capacity factor ...".
std::string option_help(const RouterOption& option) {
  std::string name = option.name, values = option.values;
  if (option.position == OptionPosition::kModifier) {
    name = "+" + name;
  } else if (option.position == OptionPosition::kNamed) {
    name += "=";
    const std::string text = option_text(option);
    const std::string fallback = *option.fallback == '\0' ? text : option.fallback;
    if (!fallback.empty() && !option.is_required()) {
      values += fmt::format(" ({})", fallback);
    }
  }
  return fmt::format("      {:<9} {}{}{}\n", name, values, values.empty() ? "" : ": ", option.help);
}

// Returns the keys of the "router" object, in the order of the families and their options.
Strings json_keys() {
  Strings keys = {"family"};
  for (const auto& family : router_families()) {
    RouterSettings settings = default_settings(family);
    for (const auto& option : router_options(settings)) {
      if (std::ranges::find(keys, option.key) == keys.end()) {
        keys.push_back(option.key);
      }
    }
  }
  return keys;
}

const RouterFamily& family_from_json(const Json& json, const std::string& where) {
  const std::string name = get_string(json, "family", where);
  Strings names;
  for (const auto& family : router_families()) {
    if (family.name == name) {
      return family;
    }
    names.push_back(family.name);
  }
  throw UserError("{}: router family '{}' is unknown, known: {}", where, name,
                  fmt::join(names, ", "));
}

bool is_whole(const Member& member) {
  return std::holds_alternative<int64_t*>(member) ||
         std::holds_alternative<std::optional<int64_t>*>(member);
}

// Sets an option from its key. A missing optional key keeps the default; null resets an optional
// member and keeps others. Throws UserError for a missing required key and an invalid value.
void read_option(const RouterOption& option, const Json& json, const std::string& where) {
  const Member& member = option.member;
  const bool has_key = json.contains(option.key);
  const auto no_key = option.messages.find(OptionMessage::kNoKey);
  USER_ERROR_IF(!has_key && no_key != option.messages.end(), "{}: {}", where, no_key->second);
  if (!has_value(json, option.key) && !option.is_required()) {
    if (has_key) {
      set_value(member, "");
    }
    return;
  }
  if (auto* const* flag = std::get_if<bool*>(&member)) {
    **flag = get_bool(json, option.key, where, false);
  } else if (const auto* word = std::get_if<Choice>(&member)) {
    const std::string text = get_string(json, option.key, where);
    USER_ERROR_IF(!set_value(member, text), "{}: '{}' is '{}', known: {}", where, option.key, text,
                  fmt::join(word->words, ", "));
  } else if (is_whole(member)) {
    set_value(member, fmt::format("{}", get_int(json, option.key, where)));
  } else {
    set_value(member, fmt::format("{}", get_double(json, option.key, where)));
  }
}

OrderedJson option_json(const RouterOption& option) {
  const Member& member = option.member;
  if (auto* const* flag = std::get_if<bool*>(&member)) {
    return **flag;
  }
  if (const auto* word = std::get_if<Choice>(&member)) {
    return word->get();
  }
  const auto number = numeric_value(member);
  return !number            ? OrderedJson()
         : is_whole(member) ? OrderedJson(static_cast<int64_t>(*number))
                            : OrderedJson(*number);
}

// Throws UserError if the JSON sets a modifier of a family other than `own` to true.
void refuse_foreign_modifiers(const RouterFamily& own, const Json& json, const std::string& where) {
  for (const auto& family : router_families()) {
    Strings names;
    bool is_on = false;
    RouterSettings settings = default_settings(family);
    for (const auto& option : options_at(settings, OptionPosition::kModifier)) {
      names.push_back(fmt::format("'{}'", option.key));
      is_on = (&family != &own && get_bool(json, option.key, where, false)) || is_on;
    }
    USER_ERROR_IF(is_on, "{}: {} belong to the {} family only; remove them", where,
                  fmt::join(names, " and "), family.name);
  }
}

}  // namespace

// -------------------------------------------------------------------------- families and options

const std::deque<RouterFamily>& router_families() { return families(); }

void add_router_family(RouterFamily family) { families().push_back(std::move(family)); }

const RouterFamily& default_family() { return router_families().front(); }

OwnArchitecture own_architecture(const RouterSettings& settings) {
  const RouterFamily& family = *settings.family;
  return family.is_own == nullptr || family.is_own(settings) ? family.own : OwnArchitecture();
}

RouterSettings default_settings(const RouterFamily& family, int64_t k) {
  RouterSettings settings;
  settings.family = &family;
  settings.k = k;
  if (family.set_defaults != nullptr) {
    family.set_defaults(settings);
  }
  return settings;
}

RouterOption capacity_option(RouterSettings& settings) {
  Range range = number_between(std::numeric_limits<double>::denorm_min(), 1 << 20);
  range.rule =
      "the capacity factor cf must be above 0 and at most 1048576, is {}; cf=inf drops nothing";
  return {
      .name = "cf",
      .key = "capacity_factor",
      .member = &settings.capacity_factor,
      .values = "a number above 0, or inf",
      .help =
          "capacity factor: slots an expert has for a rank of T_r tokens, in units of T_r / E; "
          "inf: as many as it has tokens",
      .traits = kScalesWithGranularity,
      .messages = {{OptionMessage::kNoKey,
                    "'capacity_factor' is missing; give a number above 0, or null for dropless"}},
      .range = range,
      .empty_word = "inf"};
}

RouterOption k_option(RouterSettings& settings) {
  return {
      .name = "k",
      .key = "k",
      .member = &settings.k,
      .values = "a whole number from 1 to the number of experts",
      .traits = kScalesWithGranularity,
      .messages =
          {{OptionMessage::kTooMany,
            "router '{}' asks for {} experts per token, the layers have {}: give a smaller k or "
            "more experts"}},
      .range = whole_between(1, kMaxExperts)};
}

bool set_option(const RouterOption& option, const std::string& text) {
  const Member& member = option.member;
  if (std::holds_alternative<bool*>(member)) {
    return (text == "on" || text == "off") && set_value(member, text == "on" ? "true" : "false");
  }
  return !text.empty() && set_value(member, text == option.empty_word ? "" : text);
}

// --------------------------------------------------------------------------------- text and JSON

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

RouterSettings parse_router(const std::string& text) {
  const std::string where = fmt::format("--router '{}'", text);
  RouterWords words = split_router(lower(text));
  const RouterFamily& family = find_family(words, where);
  RouterSettings settings = default_settings(family);
  USER_ERROR_IF(!words.modifiers.empty() && options_at(settings, OptionPosition::kModifier).empty(),
                "{}: '{}' has no modifiers: +ir and +fr reroute refused requests, which {} does "
                "not have; leave '+{}' out",
                where, family.word, family.title, fmt::join(words.modifiers, "+"));
  for (const auto& option : options_at(settings, OptionPosition::kHead)) {
    const std::string number = words.name.substr(family.word.size());
    set_required(option, &number, where, fmt::format(", not '{}'", words.name), settings);
  }
  settings = default_settings(family, settings.k);
  set_options(words.modifiers, OptionPosition::kModifier, where, settings);
  for (const auto& option : options_at(settings, OptionPosition::kFirst)) {
    set_required(option, words.options.empty() ? nullptr : words.options.data(), where, "",
                 settings);
    words.options.erase(words.options.begin());
  }
  set_options(words.options, OptionPosition::kNamed, where, settings);
  check_ranges(settings, where);
  return settings;
}

std::string to_string(const RouterSettings& settings, bool every_option) {
  RouterSettings copy = settings, defaults = default_settings(*settings.family, settings.k);
  const RouterOptions options = router_options(copy), default_options = router_options(defaults);
  std::string head = settings.family->word;
  Strings values;  // after the colon
  for (size_t i = 0; i < options.size(); ++i) {
    const RouterOption& option = options[i];
    const std::string value = option_text(option);
    if (option.position == OptionPosition::kHead) {
      head += value;
    } else if (option.position == OptionPosition::kModifier) {
      head += value == "on" ? std::string("+") + option.name : "";
    } else if (option.position == OptionPosition::kFirst) {
      values.push_back(value);
    } else if (!value.empty() &&
               (every_option || option.is_required() || value != option_text(default_options[i]))) {
      values.push_back(fmt::format("{}={}", option.name, value));
    }
  }
  return values.empty() ? head : fmt::format("{}:{}", head, fmt::join(values, ","));
}

std::string router_help() {
  std::string text = "Routers (--router), their options and defaults:\n";
  for (const auto& family : router_families()) {
    text += fmt::format("  {}\n      {}\n", family.syntax, family.help);
    RouterSettings settings = default_settings(family);
    for (const auto& option : router_options(settings)) {
      text += option_help(option);
    }
  }
  return text;
}

std::string router_forms() {
  std::string text;
  const auto& all = router_families();
  for (size_t i = 0; i < all.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == all.size() ? " or " : ", ") + all[i].syntax;
  }
  return text;
}

OrderedJson to_json(const RouterSettings& settings) {
  OrderedJson json;
  for (const auto& key : json_keys()) {
    json[key] = nullptr;
  }
  json["family"] = settings.family->name;
  RouterSettings copy = settings;
  for (const auto& option : router_options(copy)) {
    json[option.key] = option_json(option);
  }
  return json;
}

RouterSettings router_from_json(const Json& json, const std::string& where) {
  USER_ERROR_IF(!json.is_object(),
                "{}: the router is not an object like {{\"family\": \"topk\", \"k\": 1, ...}}",
                where);
  const Strings keys = json_keys();
  for (const auto& [key, value] : json.items()) {
    USER_ERROR_IF(std::ranges::find(keys, key) == keys.end(), "{}: unknown router key '{}'{}",
                  where, key, suggestion(key, keys, keys));
  }
  RouterSettings settings = default_settings(family_from_json(json, where));
  for (const auto& option : router_options(settings)) {
    read_option(option, json, where);
  }
  refuse_foreign_modifiers(*settings.family, json, where);
  check_ranges(settings, where);
  return settings;
}

// ---------------------------------------------------------------------------------------- checks

void check_ranges(const RouterSettings& settings, const std::string& where) {
  RouterSettings copy = settings;
  for (const auto& option : router_options(copy)) {
    const Range& range = option.range;
    const auto number = numeric_value(option.member);
    if (number && range.is_checked && !holds(range, *number)) {
      const std::string text = option_text(option);
      throw UserError("{}: {}", where,
                      range.rule == nullptr
                          ? fmt::format("{} must be {}, is {}", option.name, option.values, text)
                          : fmt::format(fmt::runtime(range.rule), text));
    }
  }
}

void check_router(const RouterSettings& settings, int64_t experts) {
  RouterSettings copy = settings;
  for (const auto& option : router_options(copy)) {
    const auto number = numeric_value(option.member);
    const auto message = option.messages.find(OptionMessage::kTooMany);
    USER_ERROR_IF(message != option.messages.end() && number.value_or(0) > experts, "{}",
                  fmt::format(fmt::runtime(message->second), to_string(settings),
                              option_text(option), experts));
  }
}

void check_inference(const RouterSettings& settings, const std::string& fix) {
  USER_ERROR_IF(!settings.family->no_inference.empty(), "router '{}' is for training only: {}; {}",
                to_string(settings), settings.family->no_inference, fix);
}

// ------------------------------------------------------------------------------------ properties

bool has_capacity(const RouterSettings& settings) {
  return settings.family->has_slots && settings.capacity_factor.has_value();
}

int64_t max_choices(const RouterSettings& settings, int64_t experts) {
  return settings.family->has_token_requests ? settings.k : settings.max_experts.value_or(experts);
}

RouterSettings with_granularity(RouterSettings settings, int64_t granularity) {
  for (const auto& option : router_options(settings)) {
    const auto number = numeric_value(option.member);
    if (option.has(kScalesWithGranularity) && number) {
      set_value(option.member, fmt::format("{}", *number * granularity));
    }
  }
  return settings;
}

RouterSettings generation_router(RouterSettings settings) {
  check_inference(settings, "generate with another router (--router top2)");
  settings.capacity_factor.reset();
  settings.fr = false;
  return settings;
}

double default_lb_coef(const RouterSettings& settings) {
  return settings.bias_rate ? 0 : settings.family->load_balance_coef.value_or(0);
}

double default_entropy_coef(const RouterSettings& settings) {
  return settings.family->entropy_coef.value_or(0);
}

bool weights_sum_to_one(const RouterSettings& settings) {
  return settings.family->can_normalize && settings.gate_norm == GateNorm::kSelected;
}

FunctionPreservation preserves_function(const RouterSettings& settings, double gate_scale) {
  const std::string& reason = settings.family->unnormalized_reason;
  if (!weights_sum_to_one(settings)) {
    return {false,
            gate_scale == 1.0
                ? fmt::format("not preserved: {} (--gate-scale auto corrects the mean)", reason)
                : fmt::format("not preserved token by token: {}; gate_scale {:.6g} corrects "
                              "only the mean",
                              reason, gate_scale)};
  }
  if (gate_scale != 1.0) {
    return {false,
            fmt::format("not preserved: gate_scale {:.6g} multiplies weights that sum to 1 already",
                        gate_scale)};
  }
  if (!settings.capacity_factor) {
    return {true, "no token is dropped (cf=inf) and the gate weights of every token sum to 1"};
  }
  return {settings.ir, settings.ir
                           ? "+ir serves every token that capacity drops, and the gate weights of "
                             "every token sum to 1"
                           : "not preserved for a token that capacity drops from all its experts: "
                             "it passes by the residual only (+ir or cf=inf serve every token)"};
}

}  // namespace moe::route
