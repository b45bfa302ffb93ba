#pragma once
// Splitting of a text by a pattern: regular expressions as tokenizer.json writes them, literal
// texts and classes of characters; and the five behaviours of a Split.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct re_pattern_buffer;  // Oniguruma's name for a compiled expression

namespace moe::io {

// Bytes [begin, end) of a text.
struct Section {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Matches and the parts between them, in order, covering the text. Matches may be empty.
using Sections = std::vector<Section>;
using Pattern = std::function<Sections(std::string_view)>;

// A regular expression, by Oniguruma, which the tokenizers library uses too. Debian's Oniguruma has
// the tables of Unicode 14: letters and digits assigned later are neither here.
class Regex {
 public:
  // Throws UserError naming `where` if the pattern is invalid or longer than 64 KiB.
  Regex(const std::string& pattern, const std::string& where);

  // Returns the leftmost matches that do not overlap, and the parts between. An empty match counts
  // only where no match ends. `text` must be well-formed UTF-8. Throws UserError if the search
  // exceeds its limit of backtracking or time. Thread-safe.
  Sections find(std::string_view text) const;

 private:
  std::shared_ptr<re_pattern_buffer> compiled_;
  std::string where_;
};

Pattern regex_pattern(const std::string& pattern, const std::string& where);
// Matches `text` itself. An empty one matches between all characters, as an empty expression does.
Pattern literal_pattern(const std::string& text, const std::string& where);

// Returns sections in which each character that satisfies `is_match` is a match.
Sections match_characters(std::string_view text, const std::function<bool(char32_t)>& is_match);

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Parses the name as tokenizer.json writes it ("MergedWithNext"). Throws UserError naming `where`.
Behavior parse_behavior(const std::string& name, const std::string& where);

// Returns the parts of the text that remain, in order; some may be empty.
Sections apply_behavior(const Sections& sections, Behavior behavior);

}  // namespace moe::io
