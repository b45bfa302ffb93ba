#pragma once
// What a generated answer is reduced to before it is compared: lm-evaluation-harness' filters of
// BIG-Bench-Hard (tasks/bbh/zeroshot of 0.4.13), as plain searches.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

inline constexpr const char* kNoMatch = "[invalid]";

// The first of `words` in `answer` that stands between word boundaries.
std::string first_word(std::string_view answer, const std::vector<std::string>& words);

// A phrase of a group stands for the group's value: {"no", {"no", "not plausible"}}. Case is
// ignored.
struct Phrases {
  std::string value;
  std::vector<std::string> phrases;
};
std::string first_phrase(std::string_view answer, const std::vector<Phrases>& groups);

// "(A)" as it is written; else the letter of the first option whose text occurs (case and
// punctuation ignored), else of the first ": A". Options are read from the document's "input".
std::string first_option(const std::string& answer, const OrderedJson& document);

// The first run of digits and minus signs, else a number in English words.
std::string first_number(const std::string& answer, const OrderedJson& document);

// The first run of brackets, quotes and spaces, stripped.
std::string first_brackets(const std::string& answer, const OrderedJson& document);

// The words of the document's list in the order of their last occurrence.
std::string sorted_words(const std::string& answer, const OrderedJson& document);

// exact_match: 1 or 0. `ignores_case_and_marks` drops a last full stop, commas, line feeds,
// backslashes, double quotes, and case.
double exact_match(const std::string& answer, const std::string& target,
                   bool ignores_case_and_marks);

// Returns the digits of the first number in English words, as the harness' regular expression finds
// it and word2number 1.1 reads it; empty if there is none or it cannot be read.
std::string first_number_in_words(std::string_view text);

}  // namespace moe::eval
