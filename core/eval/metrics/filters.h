#pragma once
// Filters of generated answers: lm-evaluation-harness' filters of BIG-Bench-Hard
// (tasks/bbh/zeroshot of 0.4.13), written as plain searches instead of regular expressions.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

inline constexpr const char* kNoMatch = "[invalid]";  // what a filter returns without a match

// Returns the first of `words` that occurs in `answer` between word boundaries.
std::string first_word(std::string_view answer, const std::vector<std::string>& words);

// Phrases with the same meaning: {"no", {"no", "not plausible"}}.
struct Phrases {
  std::string value;
  std::vector<std::string> phrases;
};
// Returns the value of the first phrase in `answer`, ignoring case.
std::string first_phrase(std::string_view answer, const std::vector<Phrases>& groups);

// Returns "(A)" as written; else the letter of the first option whose text occurs (ignoring case
// and punctuation); else that of the first ": A". The options come from the document's "input".
std::string first_option(const std::string& answer, const OrderedJson& document);

// Returns the first run of digits and minus signs; else the number that is written in words, as
// word2number 1.1 reads it.
std::string first_number(const std::string& answer, const OrderedJson& document);

// Returns the first run of brackets, quotes and spaces, stripped.
std::string first_brackets(const std::string& answer, const OrderedJson& document);

// Returns the words of the document's list in the order of their last occurrence in `answer`.
std::string sorted_words(const std::string& answer, const OrderedJson& document);

// The metric exact_match: 1 or 0. `ignores_case_and_marks` drops a trailing full stop, commas, line
// feeds, backslashes, double quotes, and case.
double exact_match(const std::string& answer, const std::string& target,
                   bool ignores_case_and_marks);

}  // namespace moe::eval
