// UTF-8 is walked code point by code point; letter case is a table of ranges, so that no locale can
// change a prompt.
#include "core/eval/formats/text.h"

#include <array>

#include "core/eval/formats/punctuation.h"

namespace moe::eval {
namespace {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 1;
};

// The first code point of valid UTF-8; a broken byte stands for itself.
CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes == 1 || text.size() < bytes) {
    return {lead, 1};
  }
  char32_t value = lead & (0xFFU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    value = (value << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  return {value, bytes};
}

void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0U | (value >> 6U));
    put(0x80U | (value & 0x3FU));
  } else if (value < 0x10000) {
    put(0xE0U | (value >> 12U));
    put(0x80U | ((value >> 6U) & 0x3FU));
    put(0x80U | (value & 0x3FU));
  } else {
    put(0xF0U | (value >> 18U));
    put(0x80U | ((value >> 12U) & 0x3FU));
    put(0x80U | ((value >> 6U) & 0x3FU));
    put(0x80U | (value & 0x3FU));
  }
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  const bool is_symbol = (c < 0xC0 && c != 0xAA && c != 0xB5 && c != 0xBA) || c == 0xD7 ||
                         c == 0xF7 || (c >= 0x2000 && c < 0x2C00) || (c >= 0x3000 && c < 0x3040) ||
                         c >= 0x1F000;
  return !is_symbol && !is_space(c) && !is_punctuation(c);
}

// Upper-case letters first, first + step, .. last; the small letter stands `shift` further on.
struct CaseRange {
  int32_t first, last, step, shift;
};
constexpr std::array<CaseRange, 18> kCases = {{
    {0x41, 0x5A, 1, 32},
    {0xC0, 0xD6, 1, 32},
    {0xD8, 0xDE, 1, 32},
    {0x100, 0x12E, 2, 1},
    {0x132, 0x136, 2, 1},
    {0x139, 0x147, 2, 1},
    {0x14A, 0x176, 2, 1},
    {0x178, 0x178, 1, -121},
    {0x179, 0x17D, 2, 1},
    {0x386, 0x386, 1, 38},
    {0x388, 0x38A, 1, 37},
    {0x38C, 0x38C, 1, 64},
    {0x38E, 0x38F, 1, 63},
    {0x391, 0x3A1, 1, 32},
    {0x3A3, 0x3AB, 1, 32},
    {0x400, 0x40F, 1, 80},
    {0x410, 0x42F, 1, 32},
    {0x460, 0x480, 2, 1},
}};

void append_lower(std::string& text, char32_t value) {
  const auto c = static_cast<int32_t>(value);
  if (c == 0x130) {  // a dotted capital I keeps its dot: two code points
    text += "i\xCC\x87";
    return;
  }
  for (const auto& [first, last, step, shift] : kCases) {
    if (c >= first && c <= last && (c - first) % step == 0) {
      append_utf8(text, static_cast<char32_t>(c + shift));
      return;
    }
  }
  append_utf8(text, value);
}

void append_title(std::string& text, char32_t value) {
  const auto c = static_cast<int32_t>(value);
  if (c == 0xDF) {  // sharp s
    text += "Ss";
    return;
  }
  if (c == 0xB5 || c == 0x131 || c == 0x17F ||
      c == 0x3C2) {  // micro, dotless i, long s, final sigma
    append_utf8(text, c == 0xB5 ? 0x39C : c == 0x131 ? 'I' : c == 0x17F ? 'S' : 0x3A3);
    return;
  }
  for (const auto& [first, last, step, shift] : kCases) {
    const int32_t upper = c - shift;
    if (upper >= first && upper <= last && (upper - first) % step == 0) {
      append_utf8(text, static_cast<char32_t>(upper));
      return;
    }
  }
  append_utf8(text, value);
}

}  // namespace

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
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
    character += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
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
  while (before > 0 && (static_cast<unsigned char>(text[--before]) & 0xC0U) == 0x80U) {
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

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

}  // namespace moe::eval
