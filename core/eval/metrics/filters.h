#pragma once
// Filters of generated answers: those of lm-evaluation-harness for BIG-Bench-Hard
// (tasks/bbh/zeroshot of 0.4.13), with plain searches in place of regular expressions. A filter
// returns kNoMatch if nothing matches.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

inline constexpr const char* kNoMatch = "[invalid]";

// Returns the element of `words` that occurs first in `answer`, between word boundaries.
std::string first_word(std::string_view answer, const std::vector<std::string>& words);

// Phrases with the same meaning: {"no", {"no", "not plausible"}}.
struct Phrases {
  std::string value;
  std::vector<std::string> phrases;
};
// Returns the value of the first phrase in `answer`, ignoring case.
std::string first_phrase(std::string_view answer, const std::vector<Phrases>& groups);

// Returns an option as "(A)". Searches `answer` for the first letter in parentheses; else for the
// first text of an option in the document's "input", ignoring case and punctuation; else for the
// first letter of an option after a colon.
std::string first_option(const std::string& answer, const OrderedJson& document);

// Returns the first sequence of digits and minus signs; else the first number in English words,
// parsed as by word2number 1.1.
std::string first_number(const std::string& answer, const OrderedJson& document);

// Returns the first sequence of brackets, double quotes and spaces, stripped of white space.
std::string first_brackets(const std::string& answer, const OrderedJson& document);

// Returns the words of the list in the document's "input" that occur in `answer`, separated by
// spaces, in the order of their last occurrence; kNoMatch if the document has no list.
std::string sorted_words(const std::string& answer, const OrderedJson& document);

// The metric exact_match: returns 1 if the texts are equal, else 0. `ignores_case_and_punctuation`
// ignores case, a trailing full stop, commas, line feeds, backslashes and double quotes.
double exact_match(const std::string& answer, const std::string& target,
                   bool ignores_case_and_punctuation);

}  // namespace moe::eval
