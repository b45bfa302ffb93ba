#pragma once
// UTF-8, and text for the terminal. The text of files is untrusted: quoted in a message, it must
// not control the terminal. All output passes through terminal_text() or print_text()
// (tests/layout_test.cpp).

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace moe {

inline constexpr size_t kValidUtf8 = std::string_view::npos;

// Returns the offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table
// 3-7: no overlong forms, no surrogates, no code points above U+10FFFF), or kValidUtf8.
size_t find_invalid_utf8(std::string_view text);

// Returns true if `byte` continues a character of well-formed UTF-8.
constexpr bool is_continuation_byte(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Returns the code point that begins at `at` and advances `at` past it. `text` must be well-formed
// UTF-8 and `at` the beginning of a character.
char32_t next_code_point(std::string_view text, size_t& at);

// Replaces invalid UTF-8: one U+FFFD for each maximal prefix of a character, and for each other
// invalid byte (Unicode 15, section 3.9, "maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

// Returns `text` for an error message: control characters and invalid UTF-8 become '?', text beyond
// `max_bytes` becomes "...".
std::string printable(std::string_view text, size_t max_bytes = 120);

// Returns `text` for a terminal: control characters, invalid UTF-8 and marks of writing direction,
// which could move the cursor, change colours or reorder letters, are written as \x1b or \u{202e}.
// Line breaks and tabs stay unless `one_line` is set.
std::string terminal_text(std::string_view text, bool one_line = false);
inline std::string terminal_line(std::string_view text) { return terminal_text(text, true); }

// Formats text with untrusted strings and prints terminal_text() of the result. Keeps line breaks:
// pass a name that could forge a line through terminal_line().
template <typename... Args>
void print_text(std::FILE* file, fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(file, "{}", terminal_text(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void print_text(fmt::format_string<Args...> format, Args&&... args) {
  print_text(stdout, format, std::forward<Args>(args)...);
}

// Returns the valid JSON text `json` with JSON escapes (\u009b) for all characters that
// terminal_text() escapes.
std::string terminal_json(std::string_view json);

// Returns `message` as one line of at most 4000 bytes. Words of more than 200 bytes, such as a long
// path, are shortened in the middle.
std::string message_text(std::string_view message);

// Returns `text` with `to` in place of each `from`, which must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Returns `text` with each character that is a key of `escapes` replaced by its value.
std::string escape(std::string_view text, const std::map<char, std::string>& escapes);

// Returns "1,234,567" for 1234567.
std::string group_digits(int64_t number);

}  // namespace moe
