#pragma once
// What Python's strip() and Jinja's trim take off a text, of ASCII.

#include <string>
#include <string_view>

namespace moe::data {

inline std::string strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return "";
  }
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

}  // namespace moe::data
