#pragma once
// Python's string functions as far as the harness's prompts and metrics use them. Text is UTF-8;
// lengths and indices count code points. Character classes come from utf8proc's Unicode version,
// the harness's from its Python's: they differ for characters that only the later version has.

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

// str.capitalize(): title case for the first letter, lower case for the rest. Letters whose title
// case is several letters are kept, except the sharp s.
std::string capitalize(std::string_view text);

// str.lower(), except that a final sigma is not treated specially.
std::string lower(std::string_view text);

// Returns true if the regular expression `\b` matches before byte `at` of `text` (0 .. its size): a
// word consists of letters, numbers and underscores.
bool is_word_boundary(std::string_view text, size_t at);

// Returns true if the first character is a letter or a combining mark.
bool begins_with_letter(std::string_view text);

// Returns `text` without the characters of Unicode's punctuation categories (P*).
std::string without_punctuation(std::string_view text);

// Returns the decimal integer that is all of `text`; nothing for other text.
std::optional<int64_t> parse_int(std::string_view text);

// Parses a list or dictionary as Python and numpy print it; Hugging Face's CSV export writes nested
// fields in this form: "{'text': array(['a', 'b'], dtype=object)}" or "['x' 'y']". Throws
// UserError, which begins with `where`, for other text: another call, a list cut by "...", nesting
// beyond kMaxJsonDepth.
Json parse_literal(std::string_view text, const std::string& where);

}  // namespace moe::eval
