#include "core/base/html.h"

#include <fmt/format.h>

#include "core/base/utf8.h"

namespace moe {

std::string html(std::string_view text) {
  std::string out;
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += c;
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += "\uFFFD";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string json_in_script(std::string json) {
  for (size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

std::string grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    digits.insert(at -= 3, ",");
  }
  return digits;
}

}  // namespace moe
