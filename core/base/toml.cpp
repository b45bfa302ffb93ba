// Depth is checked before the call of toml++, which builds, prints and destroys nested tables by
// recursion and does not limit the dots of a key: "a.a.a. .. = 1" of 100 kB overflows the stack.

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe {
namespace {

// Returns the offset after the string whose opening quote is at `at`.
size_t string_end(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool is_long = text.substr(at).starts_with(std::string(3, quote));
  const size_t width = is_long ? 3 : 1;
  for (at += width; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (text.substr(at).starts_with(std::string(width, quote))) {
      return at + width;
    } else if (text[at] == '\n' && !is_long) {
      return at;
    }
  }
  return text.size();
}

// Returns true for the characters of a dotted key: bare keys, and white space around dots.
bool is_key_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == ' ' ||
         c == '\t';
}

int64_t line_number(std::string_view text, size_t at) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n');
}

// Throws UserError if brackets or dots outside strings and comments nest too deep. Finds the
// same strings as the parser up to the first syntax error, where the parser stops. Refuses letters
// outside ASCII because the table of toml++ 3.3 lacks most letters below U+049A.
void check_toml_depth(std::string_view text, const std::string& where) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  int brackets = 0, dots = 0;
  for (size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = string_end(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    USER_ERROR_IF(static_cast<unsigned char>(c) >= 0x80,
                  "{} line {}: a letter outside ASCII; put the text or the key in quotes", where,
                  line_number(text, at));
    if (c == '.') {
      ++dots;
    } else if (!is_key_character(c)) {
      dots = 0;
    }
    brackets += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    USER_ERROR_IF(brackets > kMaxTomlNesting || dots > kMaxTomlDots,
                  "{} line {}: nested deeper than {} brackets or {} dots in a key", where,
                  line_number(text, at), kMaxTomlNesting, kMaxTomlDots);
    ++at;
  }
}

Json to_json(const toml::node& node, const std::string& where, int depth) {
  USER_ERROR_IF(depth > kMaxJsonDepth, "{} line {}: nested deeper than {} levels", where,
                node.source().begin.line, kMaxJsonDepth);
  return node.visit([&](const auto& value) -> Json {
    using Node = decltype(value);
    if constexpr (toml::is_table<Node>) {
      Json object = Json::object();
      for (const auto& [key, member] : value) {
        object[std::string(key.str())] = to_json(member, where, depth + 1);
      }
      return object;
    } else if constexpr (toml::is_array<Node>) {
      Json list = Json::array();
      for (const auto& element : value) {
        list.push_back(to_json(element, where, depth + 1));
      }
      return list;
    } else if constexpr (toml::is_chronological<Node>) {  // a date, a time or both
      std::ostringstream text;
      text << value.get();
      return text.str();
    } else {
      return value.get();
    }
  });
}

}  // namespace

Json parse_toml(std::string_view text, const std::string& where) {
  check_toml_depth(text, where);
  try {
    return to_json(toml::parse(text), where, 0);
  } catch (const toml::parse_error& error) {
    throw UserError("{} line {}: {}", where, error.source().begin.line,
                    printable(error.description()));
  }
}

}  // namespace moe
