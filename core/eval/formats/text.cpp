// Character classes and case come from utf8proc, so that they do not depend on the locale.

#include "core/eval/formats/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/jinja/value.h"

namespace moe::eval {

namespace {

struct CodePoint {
  int32_t value = 0;
  size_t bytes = 1;
};

// Returns the first code point of `text`, which must not be empty. For invalid UTF-8, returns the
// value of the first byte.
CodePoint first_code_point(std::string_view text) {
  int32_t value = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &value);
  return bytes > 0 ? CodePoint{value, static_cast<size_t>(bytes)}
                   : CodePoint{static_cast<unsigned char>(text[0]), 1};
}

// Calls `visit` with the value and the bytes of each code point.
template <typename Visit>
void for_each_code_point(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    visit(c.value, text.substr(0, c.bytes));
    text.remove_prefix(c.bytes);
  }
}

void append_utf8(std::string& text, int32_t value) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(value, bytes.data());
  text.append(bytes.begin(), bytes.begin() + count);
}

bool is_space(int32_t c) { return jinja::is_space(static_cast<char32_t>(c)); }

// Returns the first letter of the general category: 'L' letter, 'M' mark, 'N' number, 'P'
// punctuation and so on.
char major_category(int32_t c) { return utf8proc_category_string(c)[0]; }

bool is_word(int32_t c) { return c == '_' || major_category(c) == 'L' || major_category(c) == 'N'; }

void append_lower(std::string& text, int32_t c) {
  if (c == 0x130) {  // dotted capital I: becomes i and a combining dot
    text += "i\xCC\x87";
  } else {
    append_utf8(text, utf8proc_tolower(c));
  }
}

// Recursive-descent parser. Elements may be separated by white space (numpy) or commas (Python).
class LiteralParser {
 public:
  LiteralParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json parse() {
    Json value = read_value(0);
    skip_space();
    require(at_ == text_.size());
    return value;
  }

 private:
  void require(bool condition) const {
    USER_ERROR_IF(
        !condition,
        "{}: '{}' is not a list or dictionary of Python; export the data set as JSON lines", where_,
        printable(text_, 60));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  // Skips `word` if it is next. Returns true if it was.
  bool take(std::string_view word) {
    if (text_.substr(at_).starts_with(word)) {
      at_ += word.size();
      return true;
    }
    return false;
  }

  Json read_value(int depth) {
    skip_space();
    require(depth <= kMaxJsonDepth);
    if (take("array(")) {
      Json value = read_value(depth + 1);
      const size_t end = text_.find(')', at_);  // ", dtype=object)"
      require(value.is_array() && end != std::string_view::npos);
      at_ = end + 1;
      return value;
    }
    if (peek() == '[') {
      Json list = Json::array();
      read_entries(']', [&] { list.push_back(read_value(depth + 1)); });
      return list;
    }
    if (peek() == '{') {
      Json dictionary = Json::object();
      read_entries('}', [&] {
        const Json key = read_value(depth + 1);
        skip_space();
        require(key.is_string() && take(":"));
        dictionary[key.get<std::string>()] = read_value(depth + 1);
      });
      return dictionary;
    }
    return peek() == '\'' || peek() == '"' ? read_string() : read_word();
  }

  // Skips the opening bracket, calls `read_entry` for each entry, and skips the bracket `end`.
  template <typename Read>
  void read_entries(char end, const Read& read_entry) {
    ++at_;
    for (skip_space(); peek() != end; skip_space()) {
      read_entry();
      skip_space();
      take(",");
    }
    ++at_;
  }

  Json read_string() {
    const char quote = text_[at_++];
    std::string value;
    while (peek() != quote) {
      require(at_ < text_.size());
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
    require(digits > 0 && hex.size() == digits && failure == std::errc() &&
            end == hex.data() + digits &&
            utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(code)));
    at_ += digits;
    std::string text;
    append_utf8(text, static_cast<int32_t>(code));
    return text;
  }

  Json read_word() {
    const std::string_view rest = text_.substr(at_);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\n,]})"));
    at_ += word.size();
    if (word == "True" || word == "False") {
      return word == "True";
    }
    if (word == "None") {
      return nullptr;
    }
    const auto number = parse_int(word);
    require(number.has_value());
    return *number;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

int64_t count_code_points(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !is_continuation_byte(c); });
}

std::string_view right_strip(std::string_view text) {
  size_t end = 0, at = 0;  // `end`: one past the last code point that is not white space
  for_each_code_point(text, [&](int32_t c, std::string_view bytes) {
    at += bytes.size();
    end = is_space(c) ? end : at;
  });
  return text.substr(0, end);
}

std::string slice(std::string_view text, int64_t begin, int64_t end) {
  std::string result;
  int64_t character = -1;
  for (const char c : text) {
    character += !is_continuation_byte(c) ? 1 : 0;
    if (character >= begin && character < end) {
      result += c;
    }
  }
  return result;
}

std::string_view left_strip(std::string_view text) {
  while (!text.empty() && is_space(first_code_point(text).value)) {
    text.remove_prefix(first_code_point(text).bytes);
  }
  return text;
}

std::string strip(std::string_view text) { return std::string(right_strip(left_strip(text))); }

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words(1);
  for_each_code_point(text, [&](int32_t c, std::string_view bytes) {
    if (!is_space(c)) {
      words.back().append(bytes);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  });
  if (words.back().empty()) {
    words.pop_back();
  }
  return words;
}

std::string lower(std::string_view text) {
  std::string result;
  for_each_code_point(text, [&](int32_t c, std::string_view) { append_lower(result, c); });
  return result;
}

bool is_word_boundary(std::string_view text, size_t at) {
  size_t before = at;
  while (before > 0 && is_continuation_byte(text[--before])) {
  }
  const bool word_before = at > 0 && is_word(first_code_point(text.substr(before)).value);
  const bool word_after = at < text.size() && is_word(first_code_point(text.substr(at)).value);
  return word_before != word_after;
}

std::string without_punctuation(std::string_view text) {
  std::string result;
  for_each_code_point(text, [&](int32_t c, std::string_view bytes) {
    result.append(major_category(c) == 'P' ? "" : bytes);
  });
  return result;
}

std::string capitalize(std::string_view text) {
  std::string result;
  for_each_code_point(text, [&](int32_t c, std::string_view) {
    if (!result.empty()) {
      append_lower(result, c);
    } else if (c == 0xDF) {  // sharp s
      result = "Ss";
    } else {
      append_utf8(result, utf8proc_totitle(c));
    }
  });
  return result;
}

bool begins_with_letter(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  const CodePoint first = first_code_point(text);
  const bool is_broken = first.bytes == 1 && first.value >= 0x80;  // a byte of truncated UTF-8
  const char category = major_category(first.value);
  return !is_broken && (category == 'L' || category == 'M');
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                    : std::nullopt;
}

Json parse_literal(std::string_view text, const std::string& where) {
  return LiteralParser(text, where).parse();
}

}  // namespace moe::eval
