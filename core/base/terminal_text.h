#pragma once
// Text for a terminal. Names, settings and texts that come from files may hold control characters;
// everything that is printed passes through these functions.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace moe {

// `text` fit for a terminal: what would move its cursor, change its colours or reorder its letters
// (control characters, broken UTF-8, marks of writing direction) is spelt out, as \x1b or \u{202e};
// the rest stays. Line breaks and tabs stay, unless `one_line`: then they are spelt out too.
std::string terminal_text(std::string_view text, bool one_line = false);

// Formats and prints text that may hold strings of others: fmt::print() behind terminal_text().
// Line breaks stay; a name that could forge a line is passed through terminal_text() by itself.
template <typename... Args>
void print_text(std::FILE* file, fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(file, "{}", terminal_text(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void print_text(fmt::format_string<Args...> format, Args&&... args) {
  print_text(stdout, format, std::forward<Args>(args)...);
}

// Returns `json`, which is valid JSON, with each character inside a string that terminal_text()
// would spell out as the escape \u00XX of JSON.
std::string terminal_json(std::string_view json);

// A message as it is shown to the user: one line, in which words of more than 200 bytes, such as a
// path that somebody pasted twice, are cut in their middle, and which ends after 4000.
std::string message_text(std::string_view message);

}  // namespace moe
