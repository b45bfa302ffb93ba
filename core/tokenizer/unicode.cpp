#include "core/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/base/error.h"

namespace moe::io {

namespace {

// Returns the first letter of the general category, such as 'L'.
char category(char32_t code_point) {
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point))[0];
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

constexpr size_t kBytes = 256, kInvisibleBytes = 68;

struct ByteLevelTables {
  std::array<char32_t, kBytes> character{};
  std::array<int, kBytes + kInvisibleBytes> byte{};  // -1: the character spells none
};

constexpr ByteLevelTables make_byte_level_tables() {
  ByteLevelTables tables;
  tables.byte.fill(-1);
  char32_t other = kBytes;
  for (int byte = 0; byte < static_cast<int>(kBytes); ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = is_visible ? static_cast<char32_t>(byte) : other++;
    tables.character[static_cast<size_t>(byte)] = character;
    tables.byte[character] = byte;
  }
  return tables;
}

constexpr ByteLevelTables kByteLevel = make_byte_level_tables();

}  // namespace

void append_code_point(std::string& text, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || (c >= 0xA0 && category(c) == 'Z');
}

bool is_numeric(char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : category(c) == 'N'; }

bool is_punctuation(char32_t c) {
  return c < 0x80 ? std::ispunct(static_cast<int>(c)) != 0 : category(c) == 'P';
}

size_t skip_white_space(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_white_space(next_code_point(text, at))) {
      return begin;
    }
  }
  return text.size();
}

size_t end_without_white_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end;  // of the last character
    do {
      --begin;
    } while (begin > 0 && is_continuation_byte(text[begin]));
    size_t at = begin;
    if (!is_white_space(next_code_point(text, at))) {
      break;
    }
    end = begin;
  }
  return end;
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (is_compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* mapped = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(mapped, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) {
    throw std::bad_alloc();
  }
  MOE_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(mapped), static_cast<size_t>(size)};
}

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the only character whose lower case is two code points
      lower += "i\u0307";
    } else if (c < 0x80) {
      lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    } else {
      append_code_point(lower,
                        static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

void append_byte_level(std::string& text, uint8_t byte) {
  const char32_t character = kByteLevel.character[byte];
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else {  // all are below U+0800
    text += static_cast<char>(0xC0 | character >> 6);
    text += static_cast<char>(0x80 | (character & 0x3F));
  }
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) {
    append_byte_level(text, static_cast<uint8_t>(byte));
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = next_code_point(text, at);
    if (character >= kByteLevel.byte.size() || kByteLevel.byte[character] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kByteLevel.byte[character]);
  }
  return bytes;
}

std::string piece_bytes(const std::string& piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>')) {
    const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
    if (high != std::string_view::npos && low != std::string_view::npos) {
      return std::string(1, static_cast<char>(high * 16 + low));
    }
  }
  return replace_all(piece, kSpaceMark, " ");
}

}  // namespace moe::io
