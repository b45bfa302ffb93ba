#pragma once
// Names and sentences of others on a terminal: text, not commands.

#include <string>
#include <string_view>

namespace moe {

// `text` fit for a terminal: what would move its cursor, change its colours or reorder its letters
// (control characters, broken UTF-8, marks of writing direction) is spelt out, as \x1b or \u{202e};
// the rest stays. Line breaks and tabs stay, unless `one_line`: then they are spelt out too.
std::string terminal_text(std::string_view text, bool one_line = false);

// A message as it is shown to the user: one line, in which words of more than 200 bytes, such as a
// path that somebody pasted twice, are cut in their middle, and which ends after 4000.
std::string message_text(std::string_view message);

}  // namespace moe
