// The "router" object of config.json: "family" and the keys of every family's options, null where
// they mean nothing to this one. A key that nobody knows is an error: a misspelt one must not route
// in silence.

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

using Strings = std::vector<std::string>;

// In the order of the families and their options.
const Strings& json_keys() {
  static const Strings keys = [] {
    Strings all = {"family"};
    for (const auto& family : router_families()) {
      for (const auto& option : family.options) {
        if (std::find(all.begin(), all.end(), option.key) == all.end()) {
          all.push_back(option.key);
        }
      }
    }
    return all;
  }();
  return keys;
}

std::string known_keys(const std::string& unknown) {
  const std::string nearest = nearest_name(unknown, json_keys());
  return fmt::format("{} Known: {}",
                     nearest.empty() ? "." : fmt::format(", did you mean '{}'?", nearest),
                     fmt::join(json_keys(), ", "));
}

const RouterFamily& family_from_json(const Json& json, const std::string& where) {
  const std::string name = get_string(json, "family", where);
  Strings known_keys;
  for (const auto& family : router_families()) {
    if (family.name == name) {
      return family;
    }
    known_keys.push_back(family.name);
  }
  throw UserError("{}: router family '{}' is unknown, known: {}", where, name,
                  fmt::join(known_keys, ", "));
}

// The value of an option whose key is there.
OptionValue value_from_json(const RouterOption& option, const Json& json,
                            const std::string& where) {
  switch (option.value.form) {
    case OptionForm::kWhole:
      return get_int(json, option.key, where);
    case OptionForm::kNumber:
      return get_double(json, option.key, where);
    case OptionForm::kSwitch:
      return get_bool(json, option.key, where, false);
    case OptionForm::kWords:
      break;
  }
  const std::string word = get_string(json, option.key, where);
  if (word != option.words[0] && word != option.words[1]) {
    throw UserError("{}: '{}' is '{}', known: {}, {}", where, option.key, word, option.words[0],
                    option.words[1]);
  }
  return word == option.words[1];
}

void read_option(const RouterOption& option, const Json& json, const std::string& where,
                 RouterSettings& settings) {
  const bool is_there = json.contains(option.key);
  if (!is_there && !option.when_no_key.empty()) {
    throw UserError("{}: {}", where, option.when_no_key);
  }
  if (is_there && json.at(option.key).is_null() && option.value.may_be_empty) {
    option.value.set(settings, OptionValue());
  } else if (!option.when_missing.empty() || (is_there && !json.at(option.key).is_null())) {
    option.value.set(settings, value_from_json(option, json, where));
  }
}

// Switches that another family adds to its name mean something that this one cannot do.
void refuse_foreign_modifiers(const RouterFamily& own, const Json& json, const std::string& where) {
  for (const auto& family : router_families()) {
    Strings names;
    bool is_on = false;
    for (const auto& option : family.options) {
      if (&family != &own && option.position == OptionPosition::kModifier) {
        names.push_back("'" + option.key + "'");
        is_on = get_bool(json, option.key, where, false) || is_on;
      }
    }
    if (is_on) {
      throw UserError("{}: {} belong to the {} family only; remove them", where,
                      fmt::join(names, " and "), family.name);
    }
  }
}

}  // namespace

OrderedJson to_json(const RouterSettings& settings) {
  OrderedJson json;
  for (const auto& key : json_keys()) {
    json[key] = nullptr;
  }
  json["family"] = settings.family->name;
  for (const auto& option : settings.family->options) {
    const OptionValue value = option.value.get(settings);
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      json[option.key] = *whole;
    } else if (const auto* number = std::get_if<double>(&value)) {
      json[option.key] = *number;
    } else if (option.value.form == OptionForm::kWords) {
      json[option.key] = value_text(option, value);
    } else if (const auto* is_on = std::get_if<bool>(&value)) {
      json[option.key] = *is_on;
    }
  }
  return json;
}

RouterSettings router_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: the router is not an object like {{\"family\": \"topk\", \"k\": 1, ...}}",
                    where);
  }
  for (const auto& [key, value] : json.items()) {
    const Strings& keys = json_keys();
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw UserError("{}: unknown router key '{}'{}", where, key, known_keys(key));
    }
  }
  RouterSettings settings = start_of(family_from_json(json, where));
  for (const auto& option : settings.family->options) {
    read_option(option, json, where, settings);
  }
  refuse_foreign_modifiers(*settings.family, json, where);
  check_ranges(settings, where);
  return settings;
}

}  // namespace moe::route
