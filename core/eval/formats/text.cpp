// UTF-8 is walked code point by code point; what a code point is says utf8proc, so that no locale
// can change a prompt.
#include "core/eval/formats/text.h"

#include <utf8proc.h>

#include <array>

#include "core/base/text.h"

namespace moe::eval {
namespace {

struct CodePoint {
  int32_t value = 0;
  size_t bytes = 1;
};

// The first code point of a text that is not empty; a byte that begins none stands for itself.
CodePoint first_code_point(std::string_view text) {
  int32_t value = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &value);
  return bytes > 0 ? CodePoint{value, static_cast<size_t>(bytes)}
                   : CodePoint{static_cast<unsigned char>(text[0]), 1};
}

void append_utf8(std::string& text, int32_t value) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(value, bytes.data());
  text.append(bytes.begin(), bytes.begin() + count);
}

// str.isspace(): separators of words, and what the bidirectional algorithm takes for white space.
bool is_space(int32_t c) {
  const utf8proc_property_t& property = *utf8proc_get_property(c);
  return property.category == UTF8PROC_CATEGORY_ZS ||
         property.bidi_class == UTF8PROC_BIDI_CLASS_WS ||
         property.bidi_class == UTF8PROC_BIDI_CLASS_B ||
         property.bidi_class == UTF8PROC_BIDI_CLASS_S;
}

// The general category's first letter: 'L' letters, 'M' marks, 'N' numbers, 'P' punctuation, ..
char major_category(int32_t c) { return utf8proc_category_string(c)[0]; }

bool is_punctuation(int32_t c) { return major_category(c) == 'P'; }

bool is_word(int32_t c) { return c == '_' || major_category(c) == 'L' || major_category(c) == 'N'; }

void append_lower(std::string& text, int32_t c) {
  if (c == 0x130) {  // a dotted capital I keeps its dot: two code points
    text += "i\xCC\x87";
  } else {
    append_utf8(text, utf8proc_tolower(c));
  }
}

void append_title(std::string& text, int32_t c) {
  if (c == 0xDF) {  // sharp s
    text += "Ss";
  } else {
    append_utf8(text, utf8proc_totitle(c));
  }
}

}  // namespace

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) {
    count += !is_continuation_byte(c) ? 1 : 0;
  }
  return count;
}

std::string_view right_strip(std::string_view text) {
  size_t end = 0;  // one past the last code point that is not white space
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    i += c.bytes;
    if (!is_space(c.value)) {
      end = i;
    }
  }
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
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    if (!is_space(c.value)) {
      break;
    }
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string strip(std::string_view text) { return std::string(right_strip(left_strip(text))); }

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    const bool was_inside = inside;
    inside = !is_space(c.value);
    if (inside && !was_inside) {
      words.emplace_back();
    }
    if (inside) {
      words.back().append(text.substr(i, c.bytes));
    }
    i += c.bytes;
  }
  return words;
}

std::string lower(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    append_lower(result, c.value);
    i += c.bytes;
  }
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
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (!is_punctuation(c.value)) {
      result.append(text.substr(i, c.bytes));
    }
    i += c.bytes;
  }
  return result;
}

std::string capitalize(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    i == 0 ? append_title(result, c.value) : append_lower(result, c.value);
    i += c.bytes;
  }
  return result;
}

bool begins_with_letter(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  const CodePoint first = first_code_point(text);
  const bool is_broken = first.bytes == 1 && first.value >= 0x80;  // a byte of cut-off UTF-8
  const char category = major_category(first.value);
  return !is_broken && (category == 'L' || category == 'M');
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

}  // namespace moe::eval
