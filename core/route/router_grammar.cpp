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

// Returns the options of the family that are written at `position`, bound to `settings`.
RouterOptions options_at(RouterSettings& settings, OptionPosition position) {
  RouterOptions options = options_of(settings);
  std::erase_if(options, [&](const auto& option) { return option.position != position; });
  return options;
}

Strings names_of(const RouterOptions& options, const char* prefix = "") {
  Strings names;
  for (const auto& option : options) {
    names.push_back(std::string(prefix) + option.option.name);
  }
  return names;
}

const RouterOption* find_option(const RouterOptions& options, const std::string& name) {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const auto& each) { return each.option.name == name; });
  return found == options.end() ? nullptr : &*found;
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
    RouterSettings settings = start_of(family);
    const bool has_number = !options_at(settings, OptionPosition::kHead).empty();
    if (name.starts_with(family.word) &&
        (has_number ? is_number(name.substr(family.word.size())) : name == family.word)) {
      return &family;
    }
  }
  return nullptr;
}

// Reads an option that must be given; `text` is nullptr if it is not.
void read_required(const RouterOption& option, const std::string* text, const std::string& where,
                   const std::string& rest, const RouterSettings& settings) {
  if (text == nullptr || !set_option(option, *text)) {
    throw UserError("{}: '{}' {}{}", where, settings.family->word,
                    option.sentences.at(Sentence::kMissing), rest);
  }
}

void read_modifiers(const Strings& modifiers, const std::string& where, RouterSettings& settings) {
  const RouterOptions options = options_at(settings, OptionPosition::kModifier);
  std::set<std::string> seen;
  for (const auto& word : modifiers) {
    const RouterOption* option = find_option(options, word);
    if (option == nullptr) {
      throw UserError("{}: unknown modifier '+{}', {}", where, word,
                      did_you_mean("+" + word, names_of(options, "+")));
    }
    if (!seen.insert(word).second) {
      throw UserError("{}: '+{}' is given twice, give it once", where, word);
    }
    set_option(*option, "on");
  }
}

// Reads "name=value" words.
void read_named(const Strings& words, const std::string& where, RouterSettings& settings) {
  const RouterOptions options = options_at(settings, OptionPosition::kNamed);
  std::set<std::string> seen;
  for (const auto& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const RouterOption* option = find_option(options, name);
    if (option == nullptr) {
      throw UserError("{}: unknown option '{}', {}", where, word,
                      did_you_mean(name, names_of(options)));
    }
    if (!seen.insert(name).second) {
      throw UserError("{}: '{}' is given twice, give it once", where, name);
    }
    if (equals == std::string::npos || !set_option(*option, word.substr(equals + 1))) {
      throw UserError("{}: '{}' is not understood, '{}=' takes {}", where, word, name,
                      option->takes);
    }
  }
  for (const auto& option : options) {
    if (option.must_be_named() && !seen.contains(option.option.name)) {
      read_required(option, nullptr, where, "", settings);
    }
  }
}

RouterSettings parse_words(const std::string& where, Words words) {
  const RouterFamily* family = family_of(words.name);
  if (family == nullptr) {
    fail_unknown(where, words.head);
  }
  RouterSettings settings = start_of(*family);
  if (!words.modifiers.empty() && options_at(settings, OptionPosition::kModifier).empty()) {
    throw UserError("{}: '{}' has no modifiers: {}; leave '+{}' out", where, family->word,
                    family->no_modifiers, fmt::join(words.modifiers, "+"));
  }
  for (const auto& head : options_at(settings, OptionPosition::kHead)) {
    const std::string number = words.name.substr(family->word.size());
    read_required(head, &number, where, fmt::format(", not '{}'", words.name), settings);
  }
  settings = defaults_of(settings);
  read_modifiers(words.modifiers, where, settings);
  for (const auto& first : options_at(settings, OptionPosition::kFirst)) {
    read_required(first, words.options.empty() ? nullptr : words.options.data(), where, "",
                  settings);
    words.options.erase(words.options.begin());
  }
  read_named(words.options, where, settings);
  return settings;
}

// The part after the colon, in the order of the table.
std::string options_text(RouterSettings settings, bool every_option) {
  RouterSettings defaults = defaults_of(settings);
  const RouterOptions options = options_of(settings), by_default = options_of(defaults);
  Strings texts;
  for (size_t i = 0; i < options.size(); ++i) {
    const RouterOption& option = options[i];
    const std::string text = option_text(option);
    if (option.position == OptionPosition::kFirst) {
      texts.push_back(text);
    } else if (option.position == OptionPosition::kNamed && !text.empty() &&
               (every_option || option.must_be_named() || text != option_text(by_default[i]))) {
      texts.push_back(fmt::format("{}={}", option.option.name, text));
    }
  }
  return texts.empty() ? "" : fmt::format(":{}", fmt::join(texts, ","));
}

std::string text_of(RouterSettings settings, bool every_option) {
  std::string text = settings.family->word;
  for (const auto& option : options_of(settings)) {
    if (option.position == OptionPosition::kHead) {
      text += option_text(option);
    } else if (option.position == OptionPosition::kModifier && option_text(option) == "on") {
      text += std::string("+") + option.option.name;
    }
  }
  return text + options_text(settings, every_option);
}

// Returns "  cf=VALUE   a number above 0, or inf (k)" and the help of an option that is bound to
// the defaults of its family.
std::string option_help(const RouterOption& option) {
  std::string said = option.option.name, values = option.takes;
  if (option.position == OptionPosition::kModifier) {
    said = "+" + said;
  } else if (option.position == OptionPosition::kNamed) {
    said += "=";
    const std::string fallback =
        option.option.fallback.empty() ? option_text(option) : option.option.fallback;
    if (!fallback.empty() && !option.must_be_named()) {
      values += fmt::format(" ({})", fallback);
    }
  }
  return fmt::format("      {:<9} {}{}{}\n", said, values, values.empty() ? "" : ": ",
                     option.option.help);
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
    RouterSettings start = start_of(family);
    for (const auto& option : options_of(start)) {
      text += option_help(option);
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
