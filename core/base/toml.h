#pragma once
// The TOML we read: recipes, settings of runs, task files. The only file that calls toml++
// (tests/layout_test.cpp), so that depth is checked first: toml++ builds, prints and destroys
// nested tables by recursion and does not limit the dots of a key, and "a.a.a. .. = 1" of a hundred
// kilobytes overflows the stack.

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace moe {

inline constexpr int kMaxTomlNesting = 64;  // open brackets and braces
inline constexpr int kMaxTomlDots = 32;     // in one key

// Parses `text` into an object. Tables become objects with ascending keys, dates and times strings;
// floating-point numbers may be infinite or NaN. Throws UserError that opens with `where` and the
// line: broken TOML (a key that is there twice too), nesting deeper than the bounds, a letter
// outside ASCII that is in no string and no comment.
Json parse_toml(std::string_view text, const std::string& where);

}  // namespace moe
