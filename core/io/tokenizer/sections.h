#pragma once
// A text cut into what a pattern matches and what lies between, and what becomes of the matches:
// the five behaviours of a Split in tokenizer.json.

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

// Matches and what lies between them, in order, covering the text. Matches may be empty.
using Sections = std::vector<Section>;
using Pattern = std::function<Sections(std::string_view)>;

// Every character of which `is_match` holds is a match by itself.
Sections match_characters(std::string_view text, const std::function<bool(char32_t)>& is_match);

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The name as tokenizer.json writes it ("MergedWithNext"). UserError naming `where` otherwise.
Behavior parse_behavior(const std::string& name, const std::string& where);

// The parts of the text that remain, in order; some may be empty.
Sections apply_behavior(const Sections& sections, Behavior behavior);

}  // namespace moe::io
