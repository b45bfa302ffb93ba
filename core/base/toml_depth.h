#pragma once
// TOML is parsed by toml++, which builds, prints and destroys nested tables by recursion and sets
// no bound to a key of many dots: "a.a.a. .. = 1" of a hundred kilobytes overflows the stack. Of
// letters outside ASCII it asks whether they are white space by a function that (in version 3.3) is
// undefined for most below U+049A; TOML has such letters in strings and comments alone.

#include <string>
#include <string_view>

namespace moe {

inline constexpr int kMaxTomlNesting = 64;  // open brackets and braces
inline constexpr int kMaxTomlDots = 32;     // in one key

// To be called before toml::parse. UserError, opening with `where` and the line: nested deeper than
// the two bounds allow, or a letter outside ASCII that stands in no string and no comment.
void check_toml_depth(std::string_view text, const std::string& where);

}  // namespace moe
