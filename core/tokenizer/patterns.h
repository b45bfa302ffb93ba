#pragma once
// Splitting of a text by a pattern: a regular expression of tokenizer.json, a literal text or a
// class of characters; and the five behaviors of the Split pre-tokenizer.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moe::io {

// Bytes [begin, end) of a text.
struct Section {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Matches and the parts between them, in order, covering the text. Matches may be empty.
using Sections = std::vector<Section>;
using Pattern = std::function<Sections(std::string_view)>;

// Returns a pattern that finds the leftmost non-overlapping matches of a regular expression. An
// empty match at the end of another match is ignored. Texts must be well-formed UTF-8. Uses
// Oniguruma, as the tokenizers library does. Debian's Oniguruma has the tables of Unicode 14:
// characters assigned later match neither \p{L} nor \p{N}.
//
// Throws UserError naming `where` if the expression is invalid or longer than 64 KiB. The pattern
// throws UserError if a search exceeds its limit of backtracking or time. Thread-safe.
Pattern regex_pattern(const std::string& expression, const std::string& where);
// Returns a pattern that matches `text` literally. An empty `text` matches between all characters,
// like an empty expression.
Pattern literal_pattern(const std::string& text, const std::string& where);

// Returns a pattern that matches each character for which `is_match` returns true.
Pattern class_pattern(bool (*is_match)(char32_t));

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Parses a name of tokenizer.json ("MergedWithNext"). Throws UserError naming `where`.
Behavior parse_behavior(const std::string& name, const std::string& where);

// Returns the parts of the text that remain, in order. Parts may be empty; is_match is unspecified.
Sections apply_behavior(const Sections& sections, Behavior behavior);

}  // namespace moe::io
