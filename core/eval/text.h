#pragma once
// Python's string semantics, where the harness's prompts and metrics depend on them. All text is
// valid UTF-8 (core/base/utf8.h checks).

#include <cstdint>
#include <string>
#include <string_view>

namespace moe::eval {

int64_t count_code_points(std::string_view text);  // len(text)

// str.strip(), str.rstrip(): white space is Unicode's, as str.isspace() has it.
std::string strip(std::string_view text);
std::string_view right_strip(std::string_view text);

// str.capitalize(): title case for the first letter, lower case for everything after it. Exact for
// Latin-1, Latin Extended-A, Greek (but for the final sigma) and Cyrillic; letters of other scripts
// stay as they are.
std::string capitalize(std::string_view text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace moe::eval
