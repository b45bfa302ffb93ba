#pragma once
// Python's string functions that the prompts and metrics of lm-evaluation-harness use. Text is
// UTF-8; lengths and indices count code points. Character classes follow the Unicode version of
// utf8proc, which may be older or newer than Python's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

int64_t count_code_points(std::string_view text);  // len(text)

// Returns text[begin:end] in code points; both indices are non-negative and may exceed the length.
std::string slice(std::string_view text, int64_t begin, int64_t end = INT64_MAX);

// str.strip(), str.lstrip(), str.rstrip() and str.split(): white space as in str.isspace().
std::string strip(std::string_view text);
std::string_view left_strip(std::string_view text);
std::string_view right_strip(std::string_view text);
std::vector<std::string> split_words(std::string_view text);

// str.capitalize(): the first letter in title case, the others in lower case. A first letter whose
// title case has several letters stays unchanged, except the sharp s.
std::string capitalize(std::string_view text);

// str.lower(), except that a final sigma is not treated specially.
std::string lower(std::string_view text);

// Returns true if the regular expression `\b` matches before byte `at` of `text`, 0 <= at <= size.
// A word consists of letters, numbers and underscores.
bool is_word_boundary(std::string_view text, size_t at);

// Returns true if the first character is a letter or a combining mark.
bool begins_with_letter(std::string_view text);

// Returns `text` without the characters of Unicode's punctuation categories (P*).
std::string without_punctuation(std::string_view text);

// Returns the value of `text` if it is a decimal integer, else nullopt.
std::optional<int64_t> parse_int(std::string_view text);

// Parses a list or dictionary as printed by Python or numpy, the form of nested fields in CSV files
// exported by Hugging Face: "{'text': array(['a', 'b'], dtype=object)}" or "['x' 'y']". Throws
// UserError, which begins with `where`, for any other text: other function calls, lists abbreviated
// by "...", nesting deeper than kMaxJsonDepth.
Json parse_literal(std::string_view text, const std::string& where);

}  // namespace moe::eval
