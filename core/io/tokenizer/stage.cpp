#include "core/io/tokenizer/stage.h"

#include "core/io/tokenizer/unicode.h"

namespace moe::io {

void check_growth(size_t bytes, size_t max_bytes, const std::string& where) {
  if (bytes > max_bytes) {
    throw UserError(
        "{}: the text grows to more than {} bytes, 64 times its size, which no published tokenizer "
        "does; fetch the file again",
        where, max_bytes);
  }
}

Pattern read_pattern(const Json& json, const std::string& where) {
  const auto pattern = json.find("pattern");
  if (pattern == json.end() || !pattern->is_object() || pattern->size() != 1) {
    throw UserError("{}: 'pattern' must be {{\"String\": text}} or {{\"Regex\": expression}}",
                    where);
  }
  return pattern->contains("String") ? literal_pattern(get_string(*pattern, "String", where), where)
                                     : regex_pattern(get_string(*pattern, "Regex", where), where);
}

char32_t read_character(const Json& json, const std::string& key, const std::string& where,
                        char32_t fallback) {
  if (fallback != 0 && !json.contains(key)) {
    return fallback;
  }
  const std::string text = get_string(json, key, where);
  size_t at = 0;
  const char32_t character = text.empty() ? 0 : next_code_point(text, at);
  if (text.empty() || at != text.size()) {
    throw UserError("{}: '{}' must be one character, is '{}'", where, key, printable(text));
  }
  return character;
}

PrependScheme read_prepend_scheme(const Json& json, const std::string& where) {
  const std::string scheme = get_string(json, "prepend_scheme", where, "");
  if (!scheme.empty() && scheme != "always" && scheme != "first" && scheme != "never") {
    throw UserError("{}: 'prepend_scheme' is '{}'; known: always, first, never", where,
                    printable(scheme));
  }
  if (!get_bool(json, "add_prefix_space", where, true)) {  // before prepend_scheme there was this
    if (!scheme.empty() && scheme != "never") {
      throw UserError("{}: 'add_prefix_space' is false but 'prepend_scheme' is '{}'; keep one",
                      where, scheme);
    }
    return PrependScheme::kNever;
  }
  return scheme == "first"   ? PrependScheme::kFirst
         : scheme == "never" ? PrependScheme::kNever
                             : PrependScheme::kAlways;
}

}  // namespace moe::io
