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
      RouterSettings start = start_of(family);
      for (const auto& option : options_of(start)) {
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

// Sets an option from its key, which is there.
void set_from_json(const RouterOption& option, const Json& json, const std::string& where) {
  const Member& member = option.option.member;
  if (auto* const* chosen = std::get_if<bool*>(&member)) {
    **chosen = get_bool(json, option.key, where, false);
  } else if (const auto* word = std::get_if<Choice>(&member)) {
    const std::string text = get_string(json, option.key, where);
    if (!set_value(member, text)) {
      throw UserError("{}: '{}' is '{}', known: {}", where, option.key, text,
                      fmt::join(word->words, ", "));
    }
  } else if (std::holds_alternative<int64_t*>(member) ||
             std::holds_alternative<std::optional<int64_t>*>(member)) {
    set_value(member, fmt::format("{}", get_int(json, option.key, where)));
  } else {
    set_value(member, fmt::format("{}", get_double(json, option.key, where)));
  }
}

OrderedJson to_json(const RouterOption& option) {
  const Member& member = option.option.member;
  if (auto* const* chosen = std::get_if<bool*>(&member)) {
    return **chosen;
  }
  if (const auto* word = std::get_if<Choice>(&member)) {
    return word->get();
  }
  const auto number = number_of(member);
  if (!number) {
    return {};
  }
  const bool is_whole = std::holds_alternative<int64_t*>(member) ||
                        std::holds_alternative<std::optional<int64_t>*>(member);
  return is_whole ? OrderedJson(static_cast<int64_t>(*number)) : OrderedJson(*number);
}

void read_option(const RouterOption& option, const Json& json, const std::string& where) {
  const bool is_there = json.contains(option.key);
  const bool has_value = is_there && !json.at(option.key).is_null();
  if (const auto missing = option.sentences.find(Sentence::kNoKey);
      !is_there && missing != option.sentences.end()) {
    throw UserError("{}: {}", where, missing->second);
  }
  if (has_value || option.must_be_named()) {
    set_from_json(option, json, where);
  } else if (is_there) {
    set_value(option.option.member, "");  // null; leaves all members but optional ones unchanged
  }
}

// Switches that another family adds to its name mean something that this one cannot do.
void refuse_foreign_modifiers(const RouterFamily& own, const Json& json, const std::string& where) {
  for (const auto& family : router_families()) {
    Strings names;
    bool is_on = false;
    RouterSettings start = start_of(family);
    for (const auto& option : options_of(start)) {
      if (&family != &own && option.position == OptionPosition::kModifier) {
        names.push_back(fmt::format("'{}'", option.key));
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
  RouterSettings read = settings;
  for (const auto& option : options_of(read)) {
    json[option.key] = to_json(option);
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
  for (const auto& option : options_of(settings)) {
    read_option(option, json, where);
  }
  refuse_foreign_modifiers(*settings.family, json, where);
  check_ranges(settings, where);
  return settings;
}

}  // namespace moe::route
