#pragma once
// Python's string semantics, where the harness's prompts and metrics depend on them. All text is
// valid UTF-8 (core/base/text.h checks). Classes of characters are those of utf8proc's Unicode; the
// harness has its Python's. They differ in characters that only the later of the two knows.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

int64_t count_code_points(std::string_view text);  // len(text)

// text[begin:end] of non-negative indices, in characters; what lies beyond the end is left out.
std::string slice(std::string_view text, int64_t begin, int64_t end = INT64_MAX);

// str.strip(), str.rstrip(): white space is Unicode's, as str.isspace() has it.
std::string strip(std::string_view text);
std::string_view left_strip(std::string_view text);
std::string_view right_strip(std::string_view text);
std::vector<std::string> split_words(std::string_view text);  // str.split()

// str.capitalize(): title case for the first letter, lower case for everything after it. The few
// letters whose title case is several letters stay as they are, but for the sharp s.
std::string capitalize(std::string_view text);

// str.lower(), but that a final sigma is one like any other.
std::string lower(std::string_view text);

// Whether `\b` matches before byte `at` of `text` (0 .. its size): a word consists of letters,
// numbers and underscores.
bool is_word_boundary(std::string_view text, size_t at);

// Whether the first character is a letter, or a mark that belongs to one before it.
bool begins_with_letter(std::string_view text);

// Without the characters of Unicode's punctuation categories (P*).
std::string without_punctuation(std::string_view text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Parses a list or dictionary as Python and numpy print it, which Hugging Face's CSV export leaves
// of nested fields: "{'text': array(['a', 'b'], dtype=object)}" or "['x' 'y']". Throws UserError,
// which begins with `where`, for other text: another call, a list cut by "...", nesting beyond
// kMaxJsonDepth.
Json parse_literal(std::string_view text, const std::string& where);

}  // namespace moe::eval
