// The grammar of --router: one table per family says which options it knows; parsing and errors are
// read off the tables.

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/route/router_settings.h"

namespace moe::route {
namespace {

constexpr const char* kForms =
    "top1, top2+ir+fr:cf=1.5,gate=selected,st=on,lb=first,order=choice, topp:0.4,max=2, "
    "relu:k=1,lambda0=1e-8,mult=1.2,l1=refined";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

template <typename Number>
bool parse_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

bool parse_finite(const std::string& text, double& number) {
  return parse_number(text, number) && std::isfinite(number);
}

bool parse_capacity_factor(const std::string& text, std::optional<double>& factor) {
  if (text == "inf") {
    factor.reset();
    return true;
  }
  return parse_finite(text, factor.emplace());
}

// Stores whether `value` is the first or the second of two words.
template <typename Choice>
bool parse_choice(const std::string& value, const char* first, Choice first_value,
                  const char* second, Choice second_value, Choice& choice) {
  if (value != first && value != second) {
    return false;
  }
  choice = value == first ? first_value : second_value;
  return true;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

struct Option {
  std::string name;
  std::string takes;
  std::function<bool(const std::string& value, RouterSettings& settings)> store;
};

std::vector<Option> top_k_options() {
  return {
      {"cf", "a number above 0, or inf",
       [](const auto& v, auto& s) { return parse_capacity_factor(v, s.capacity_factor); }},
      {"gate", "selected or none",
       [](const auto& v, auto& s) {
         return parse_choice(v, "selected", GateNorm::kSelected, "none", GateNorm::kNone,
                             s.gate_norm);
       }},
      {"st", "on or off",
       [](const auto& v, auto& s) {
         return parse_choice(v, "on", true, "off", false, s.straight_through);
       }},
      {"lb", "first or selected",
       [](const auto& v, auto& s) {
         return parse_choice(v, "first", LbCount::kFirst, "selected", LbCount::kSelected,
                             s.lb_count);
       }},
      {"order", "choice or score",
       [](const auto& v, auto& s) {
         return parse_choice(v, "choice", SlotOrder::kChoice, "score", SlotOrder::kScore,
                             s.slot_order);
       }},
  };
}

std::vector<Option> top_p_options() {
  return {{"max", "a whole number from 1",
           [](const auto& v, auto& s) { return parse_number(v, s.max_experts.emplace()); }}};
}

std::vector<Option> relu_options() {
  return {
      {"k", "a whole number from 1", [](const auto& v, auto& s) { return parse_number(v, s.k); }},
      {"lambda0", "a number from 0",
       [](const auto& v, auto& s) { return parse_finite(v, s.lambda0); }},
      {"mult", "a number from 1",
       [](const auto& v, auto& s) { return parse_finite(v, s.lambda_multiplier); }},
      {"l1", "refined or plain",
       [](const auto& v, auto& s) {
         return parse_choice(v, "refined", true, "plain", false, s.l1_refined);
       }},
  };
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(word, known);
  return fmt::format("{}Known: {}",
                     nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest),
                     fmt::join(known, ", "));
}

// Reads "name=value,name=value" into `settings`; returns the names it saw.
std::set<std::string> read_options(const std::string& where, const std::vector<std::string>& words,
                                   const std::vector<Option>& options, RouterSettings& settings) {
  std::vector<std::string> known;
  known.reserve(options.size());
  for (const auto& option : options) {
    known.push_back(option.name);
  }
  std::set<std::string> seen;
  for (const auto& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const auto& each) { return each.name == name; });
    if (option == options.end()) {
      throw UserError("{}: unknown option '{}', {}", where, word, did_you_mean(name, known));
    }
    if (!seen.insert(name).second) {
      throw UserError("{}: '{}' is given twice, give it once", where, name);
    }
    if (equals == std::string::npos || !option->store(word.substr(equals + 1), settings)) {
      throw UserError("{}: '{}' is not understood, '{}=' takes {}", where, word, name,
                      option->takes);
    }
  }
  return seen;
}

// `head` is what stands before the colon ("top2+ir"), `words` the options after it.
RouterSettings parse_top_k(const std::string& where, const std::string& head,
                           const std::vector<std::string>& words) {
  RouterSettings settings;
  const std::vector<std::string> parts = split(head, '+');
  const std::string number = parts[0].substr(3);
  if (!parse_number(number, settings.k)) {
    throw UserError(
        "{}: 'top' needs a whole number of experts per token, e.g. top1 or top2, not '{}'", where,
        parts[0]);
  }
  settings.capacity_factor = static_cast<double>(settings.k);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] != "ir" && parts[i] != "fr") {
      throw UserError("{}: unknown modifier '+{}', {}", where, parts[i],
                      did_you_mean("+" + parts[i], {"+ir", "+fr"}));
    }
    bool& flag = parts[i] == "ir" ? settings.ir : settings.fr;
    if (flag) {
      throw UserError("{}: '+{}' is given twice, give it once", where, parts[i]);
    }
    flag = true;
  }
  read_options(where, words, top_k_options(), settings);
  return settings;
}

RouterSettings parse_top_p(const std::string& where, std::vector<std::string> words) {
  RouterSettings settings;
  settings.family = Family::kTopP;
  settings.lb_count = LbCount::kSelected;
  if (words.empty() || !parse_finite(words[0], settings.p)) {
    throw UserError("{}: 'topp' needs the probability to reach, from 0 to 1, e.g. topp:0.4", where);
  }
  words.erase(words.begin());
  read_options(where, words, top_p_options(), settings);
  return settings;
}

RouterSettings parse_relu(const std::string& where, const std::vector<std::string>& words) {
  RouterSettings settings;
  settings.family = Family::kRelu;
  if (!read_options(where, words, relu_options(), settings).count("k")) {
    throw UserError("{}: 'relu' needs k, which sets the target sparsity 1 - k/E, e.g. relu:k=1",
                    where);
  }
  return settings;
}

[[noreturn]] void fail_unknown(const std::string& where, const std::string& head) {
  const std::string nearest = nearest_name(head, {"top1", "top2", "topp", "relu"});
  throw UserError("{}: unknown router '{}'{} Known forms: {}", where, head,
                  nearest.empty() ? "." : fmt::format(", did you mean '{}'?", nearest), kForms);
}

RouterSettings parse_family(const std::string& where, const std::string& text) {
  const auto colon = std::find(text.begin(), text.end(), ':');
  const std::string head(text.begin(), colon);
  const std::vector<std::string> words = colon == text.end()
                                             ? std::vector<std::string>()
                                             : split(std::string(colon + 1, text.end()), ',');
  const std::string family(head.begin(), std::find(head.begin(), head.end(), '+'));
  if (family == "topp" || family == "relu") {
    if (family != head) {
      throw UserError(
          "{}: '{}' has no modifiers: +ir and +fr mend what capacity refuses, and only top-k has "
          "a capacity; leave '{}' out",
          where, family, head.substr(family.size()));
    }
    return family == "topp" ? parse_top_p(where, words) : parse_relu(where, words);
  }
  const bool is_top_k = head.rfind("top", 0) == 0 &&
                        std::all_of(head.begin() + 3, head.begin() + family.size(),
                                    [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!is_top_k) {
    fail_unknown(where, head);
  }
  return parse_top_k(where, head, words);
}

}  // namespace

RouterSettings parse_router(const std::string& text) {
  const std::string where = fmt::format("--router '{}'", text);
  const RouterSettings settings = parse_family(where, lower(text));
  check_ranges(settings, where);
  return settings;
}

}  // namespace moe::route
