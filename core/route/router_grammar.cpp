// The grammar of --router both ways, and its help. What may be said is read off the families'
// tables (router.h).

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

using Strings = std::vector<std::string>;

bool is_number(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
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

std::vector<const RouterOption*> options_at(const RouterFamily& family, OptionPosition position) {
  std::vector<const RouterOption*> found;
  for (const auto& option : family.options) {
    if (option.position == position) {
      found.push_back(&option);
    }
  }
  return found;
}

// The one option that stands there, or nullptr.
const RouterOption* option_at(const RouterFamily& family, OptionPosition position) {
  const auto found = options_at(family, position);
  return found.empty() ? nullptr : found.front();
}

std::string did_you_mean(const std::string& word, const Strings& known_names) {
  const std::string nearest = nearest_name(word, known_names);
  return fmt::format("{}Known: {}",
                     nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest),
                     fmt::join(known_names, ", "));
}

[[noreturn]] void fail_unknown(const std::string& where, const std::string& head) {
  Strings near_words, forms;
  for (const auto& family : router_families()) {
    near_words.insert(near_words.end(), family.near_words.begin(), family.near_words.end());
    forms.push_back(family.forms);
  }
  const std::string nearest = nearest_name(head, near_words);
  throw UserError("{}: unknown router '{}'{} Known forms: {}", where, head,
                  nearest.empty() ? "." : fmt::format(", did you mean '{}'?", nearest),
                  fmt::join(forms, ", "));
}

// The parts of "top2+ir:cf=1.5,gate=none".
struct Words {
  std::string head;   // "top2+ir"
  std::string name;   // "top2"
  Strings modifiers;  // "ir"
  Strings options;    // "cf=1.5", "gate=none"
};

Words words_of(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string head = text.substr(0, colon);
  const Strings parts = split(head, '+');
  Words words{head, parts[0], {parts.begin() + 1, parts.end()}, {}};
  if (colon != std::string::npos) {
    words.options = split(text.substr(colon + 1), ',');
  }
  return words;
}

// The family that `name` opens with; a number may follow where one is expected.
const RouterFamily* family_of(const std::string& name) {
  for (const auto& family : router_families()) {
    const bool has_number = option_at(family, OptionPosition::kHead) != nullptr;
    if (name.starts_with(family.word) &&
        (has_number ? is_number(name.substr(family.word.size())) : name == family.word)) {
      return &family;
    }
  }
  return nullptr;
}

// Reads what must be said at `place`; `text` is nullptr where nothing is.
void read_required(const RouterOption& option, const std::string* text, const std::string& where,
                   const std::string& rest, RouterSettings& settings) {
  const auto value = text == nullptr ? std::nullopt : parse_value(option, *text);
  if (!value) {
    throw UserError("{}: '{}' {}{}", where, settings.family->word, option.when_missing, rest);
  }
  option.value.set(settings, *value);
}

void read_modifiers(const Strings& modifiers, const std::string& where, RouterSettings& settings) {
  const auto known_names = options_at(*settings.family, OptionPosition::kModifier);
  Strings names;
  for (const auto* option : known_names) {
    names.push_back("+" + option->name);
  }
  std::set<std::string> seen;
  for (const auto& word : modifiers) {
    const auto option = std::find_if(known_names.begin(), known_names.end(),
                                     [&](const auto* each) { return each->name == word; });
    if (option == known_names.end()) {
      throw UserError("{}: unknown modifier '+{}', {}", where, word,
                      did_you_mean("+" + word, names));
    }
    if (!seen.insert(word).second) {
      throw UserError("{}: '+{}' is given twice, give it once", where, word);
    }
    (*option)->value.set(settings, true);
  }
}

// Reads "name=value" words; returns the names it saw.
std::set<std::string> read_named(const Strings& words, const std::string& where,
                                 RouterSettings& settings) {
  const auto options = options_at(*settings.family, OptionPosition::kNamed);
  Strings known_names;
  for (const auto* option : options) {
    known_names.push_back(option->name);
  }
  std::set<std::string> seen;
  for (const auto& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&](const auto* each) { return each->name == name; });
    if (found == options.end()) {
      throw UserError("{}: unknown option '{}', {}", where, word, did_you_mean(name, known_names));
    }
    if (!seen.insert(name).second) {
      throw UserError("{}: '{}' is given twice, give it once", where, name);
    }
    const RouterOption& option = **found;
    const auto value =
        equals == std::string::npos ? std::nullopt : parse_value(option, word.substr(equals + 1));
    if (!value) {
      throw UserError("{}: '{}' is not understood, '{}=' takes {}", where, word, name,
                      option.takes);
    }
    option.value.set(settings, *value);
  }
  return seen;
}

RouterSettings parse_words(const std::string& where, Words words) {
  const RouterFamily* family = family_of(words.name);
  if (family == nullptr) {
    fail_unknown(where, words.head);
  }
  if (!words.modifiers.empty() && options_at(*family, OptionPosition::kModifier).empty()) {
    throw UserError("{}: '{}' has no modifiers: {}; leave '+{}' out", where, family->word,
                    family->no_modifiers, fmt::join(words.modifiers, "+"));
  }
  RouterSettings settings = start_of(*family);
  if (const auto* head = option_at(*family, OptionPosition::kHead)) {
    const std::string number = words.name.substr(family->word.size());
    read_required(*head, &number, where, fmt::format(", not '{}'", words.name), settings);
  }
  for (const auto& option : family->options) {  // those that depend on the head
    if (option.default_value != nullptr) {
      option.value.set(settings, option.default_value(settings));
    }
  }
  read_modifiers(words.modifiers, where, settings);
  if (const auto* first = option_at(*family, OptionPosition::kFirst)) {
    read_required(*first, words.options.empty() ? nullptr : words.options.data(), where, "",
                  settings);
    words.options.erase(words.options.begin());
  }
  const auto seen = read_named(words.options, where, settings);
  for (const auto* option : options_at(*family, OptionPosition::kNamed)) {
    if (!option->when_missing.empty() && !seen.contains(option->name)) {
      read_required(*option, nullptr, where, "", settings);
    }
  }
  return settings;
}

// What stands after the colon, in the order of the table.
std::string options_text(const RouterSettings& settings, bool every_option) {
  Strings texts;
  for (const auto& option : settings.family->options) {
    const OptionValue value = option.value.get(settings);
    const std::string text = value_text(option, value);
    if (option.position == OptionPosition::kFirst) {
      texts.push_back(text);
    } else if (option.position == OptionPosition::kNamed && !text.empty() &&
               (every_option || !option.when_missing.empty() ||
                value != default_value(option, settings))) {
      texts.push_back(option.name + "=" + text);
    }
  }
  return texts.empty() ? "" : fmt::format(":{}", fmt::join(texts, ","));
}

std::string text_of(const RouterSettings& settings, bool every_option) {
  std::string text = settings.family->word;
  for (const auto& option : settings.family->options) {
    if (option.position == OptionPosition::kHead) {
      text += value_text(option, option.value.get(settings));
    } else if (option.position == OptionPosition::kModifier &&
               std::get<bool>(option.value.get(settings))) {
      text += "+" + option.name;
    }
  }
  return text + options_text(settings, every_option);
}

// "  cf=VALUE   a number above 0, or inf (k)" and what it does.
std::string option_help(const RouterFamily& family, const RouterOption& option) {
  const RouterSettings start = start_of(family);
  const std::string fallback =
      option.when_missing.empty() ? value_text(option, default_value(option, start)) : "";
  const std::string said = option.position == OptionPosition::kModifier ? "+" + option.name
                           : option.position == OptionPosition::kNamed  ? option.name + "="
                                                                        : option.name;
  std::string values = option.takes;
  if (option.default_value != nullptr) {
    values += " (k)";
  } else if (option.position == OptionPosition::kNamed && !fallback.empty()) {
    values += fmt::format(" ({})", fallback);
  }
  return fmt::format("      {:<9} {}{}{}\n", said, values, values.empty() ? "" : ": ", option.help);
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

RouterSettings parse_router(const std::string& text) {
  const std::string where = fmt::format("--router '{}'", text);
  const RouterSettings settings = parse_words(where, words_of(lower(text)));
  check_ranges(settings, where);
  return settings;
}

std::string to_string(const RouterSettings& settings) {
  return text_of(settings, /*every_option=*/false);
}

std::string to_full_string(const RouterSettings& settings) {
  return text_of(settings, /*every_option=*/true);
}

std::string router_help() {
  std::string text = "Routers (--router), their options and defaults:\n";
  for (const auto& family : router_families()) {
    text += fmt::format("  {}\n      {}\n", family.syntax, family.help);
    for (const auto& option : family.options) {
      text += option_help(family, option);
    }
  }
  return text;
}

std::string router_forms() {
  std::string text;
  const auto& families = router_families();
  for (size_t i = 0; i < families.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == families.size() ? " or " : ", ") + families[i].syntax;
  }
  return text;
}

}  // namespace moe::route
