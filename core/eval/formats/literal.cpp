// A recursive descent over the few forms that occur. numpy separates elements by white space,
// Python by commas: both are taken.
#include "core/eval/formats/literal.h"

#include <charconv>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe::eval {
namespace {

class LiteralParser {
 public:
  LiteralParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json parse() {
    Json value = read_value(0);
    skip_space();
    if (at_ != text_.size()) {
      fail();
    }
    return value;
  }

 private:
  [[noreturn]] void fail() const {
    throw UserError(
        "{}: '{}' is no list or dictionary as Python prints it; export the data set as JSON lines",
        where_, printable(text_, 60));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) {
      ++at_;
    }
  }
  bool take(std::string_view word) {
    if (text_.substr(at_).starts_with(word)) {
      at_ += word.size();
      return true;
    }
    return false;
  }

  Json read_value(int depth) {
    skip_space();
    if (depth > kMaxJsonDepth) {
      fail();
    }
    if (take("array(")) {
      Json value = read_value(depth + 1);
      const size_t end = text_.find(')', at_);  // ", dtype=object)"
      if (!value.is_array() || end == std::string_view::npos) {
        fail();
      }
      at_ = end + 1;
      return value;
    }
    switch (peek()) {
      case '[':
        return read_list(depth);
      case '{':
        return read_dictionary(depth);
      case '\'':
      case '"':
        return read_string();
      default:
        return read_word();
    }
  }

  Json read_list(int depth) {
    Json list = Json::array();
    ++at_;
    for (skip_space(); peek() != ']'; skip_space()) {
      list.push_back(read_value(depth + 1));
      skip_space();
      take(",");
    }
    ++at_;
    return list;
  }

  Json read_dictionary(int depth) {
    Json dictionary = Json::object();
    ++at_;
    for (skip_space(); peek() != '}'; skip_space()) {
      const Json key = read_value(depth + 1);
      skip_space();
      if (!key.is_string() || !take(":")) {
        fail();
      }
      dictionary[key.get<std::string>()] = read_value(depth + 1);
      skip_space();
      take(",");
    }
    ++at_;
    return dictionary;
  }

  Json read_string() {
    const char quote = text_[at_++];
    std::string value;
    while (peek() != quote) {
      if (at_ >= text_.size()) {
        fail();
      }
      value += text_[at_] == '\\' ? read_escape() : std::string(1, text_[at_++]);
    }
    ++at_;
    return value;
  }

  std::string read_escape() {
    constexpr std::string_view kNames = "nrt\\'\"", kValues = "\n\r\t\\'\"";
    ++at_;
    const char name = peek();
    ++at_;
    if (const size_t code = kNames.find(name); name != '\0' && code != kNames.npos) {
      return std::string(1, kValues[code]);
    }
    const size_t digits = name == 'x' ? 2 : name == 'u' ? 4 : name == 'U' ? 8 : 0;
    uint32_t code = 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    const auto [end, failure] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (digits == 0 || hex.size() != digits || failure != std::errc() ||
        end != hex.data() + digits) {
      fail();
    }
    at_ += digits;
    std::string text;
    append_code_point(text, code);
    return text;
  }

  void append_code_point(std::string& text, uint32_t code) const {
    const auto parsed =
        try_parse_json(code < 0x10000 ? fmt::format("\"\\u{:04x}\"", code)
                                      : fmt::format("\"\\u{:04x}\\u{:04x}\"",
                                                    0xD800 + (((code - 0x10000) >> 10U) & 0x3FFU),
                                                    0xDC00 + ((code - 0x10000) & 0x3FFU)));
    if (!parsed || code > 0x10FFFF) {
      fail();
    }
    text += parsed->get<std::string>();
  }

  Json read_word() {
    size_t end = at_;
    while (end < text_.size() && std::string_view(" \t\r\n,]})").find(text_[end]) == text_.npos) {
      ++end;
    }
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "False") {
      return word == "True";
    }
    if (word == "None") {
      return nullptr;
    }
    int64_t number = 0;
    const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || failure != std::errc() || stop != word.data() + word.size()) {
      fail();
    }
    return number;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

Json parse_literal(std::string_view text, const std::string& where) {
  return LiteralParser(text, where).parse();
}

}  // namespace moe::eval
