// "twenty three thousand and five": found by a backtracking search that follows the harness's
// regular expression (including what it cannot see: a lone "six" is no number to it), read by the
// rules of word2number 1.1.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "core/eval/formats/text.h"
#include "core/eval/metrics/filters.h"

namespace moe::eval {
namespace {

using Words = std::vector<std::string>;

// The alternatives of a number word in their order. Whether a stem such as "six" and "eight" stand
// without an ending differs from place to place in the expression.
Words number_words(bool bare_stems, bool bare_eight) {
  Words words = {"zero", "one", "two", "three", "four", "five"};
  for (const char* stem : {"twen", "thir", "for", "fif", "six", "seven", "nine"}) {
    if (bare_stems) {
      words.emplace_back(stem);
    }
    words.push_back(std::string(stem) + "teen");
    words.push_back(std::string(stem) + "ty");
  }
  if (bare_eight) {
    words.emplace_back("eight");
  }
  for (const char* word : {"eighteen", "eighty", "ten", "eleven", "twelve", "fourteen", "hundred",
                           "thousand", "million", "billion", "trillion"}) {
    words.emplace_back(word);
  }
  return words;
}

// A first word, at least one word or separator, a last word; or the last word alone.
class NumberSearch {
 public:
  explicit NumberSearch(std::string_view text) : text_(text) {}

  std::optional<std::string> first() {
    for (size_t begin = 0; begin < text_.size(); ++begin) {
      for (const auto& word : first_) {
        if (text_.substr(begin).starts_with(word)) {
          if (const auto end = match_rest(begin + word.size(), false)) {
            return std::string(text_.substr(begin, *end - begin));
          }
        }
      }
      if (const auto end = match_last(begin)) {
        return std::string(text_.substr(begin, *end - begin));
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<size_t> match_last(size_t at) const {
    for (const auto& word : last_) {
      if (text_.substr(at).starts_with(word)) {
        return at + word.size();
      }
    }
    return std::nullopt;
  }

  // As many words and separators as there are, then one fewer, ..
  std::optional<size_t> match_rest(size_t at, bool any_before) {
    if (any_before && failed_.contains(at)) {
      return std::nullopt;
    }
    for (const auto& word : middle_) {
      if (text_.substr(at).starts_with(word)) {
        if (const auto end = match_rest(at + word.size(), true)) {
          return end;
        }
      }
    }
    const auto end = any_before ? match_last(at) : std::nullopt;
    if (any_before && !end) {
      failed_.insert(at);
    }
    return end;
  }

  static Words with_separators() {
    Words words = number_words(true, false);
    for (const char* separator : {" ", "\t", "\f", "\v", "\xC2\xA0", ",", "and", "&"}) {
      words.emplace_back(separator);
    }
    return words;
  }

  std::string_view text_;
  Words first_ = number_words(false, true);
  Words middle_ = with_separators();
  Words last_ = number_words(false, false);
  std::set<size_t> failed_;
};

const std::map<std::string, int64_t>& values() {
  static const std::map<std::string, int64_t> values = {
      {"zero", 0},      {"one", 1},         {"two", 2},           {"three", 3},
      {"four", 4},      {"five", 5},        {"six", 6},           {"seven", 7},
      {"eight", 8},     {"nine", 9},        {"ten", 10},          {"eleven", 11},
      {"twelve", 12},   {"thirteen", 13},   {"fourteen", 14},     {"fifteen", 15},
      {"sixteen", 16},  {"seventeen", 17},  {"eighteen", 18},     {"nineteen", 19},
      {"twenty", 20},   {"thirty", 30},     {"forty", 40},        {"fifty", 50},
      {"sixty", 60},    {"seventy", 70},    {"eighty", 80},       {"ninety", 90},
      {"hundred", 100}, {"thousand", 1000}, {"million", 1000000}, {"billion", 1000000000}};
  return values;
}

// number_formation: up to four numbers below a thousand.
std::optional<int64_t> form(const std::vector<int64_t>& n) {
  switch (n.size()) {
    case 0:
      return std::nullopt;
    case 2:
      return n[0] == 100 || n[1] == 100 ? n[0] * n[1] : n[0] + n[1];
    case 3:
      return n[0] * n[1] + n[2];
    case 4:
      return n[0] * n[1] + n[2] + n[3];
    default:
      return n[0];
  }
}

// word_to_num without decimals; none where it raises an error.
std::optional<int64_t> read_number(const std::string& text) {
  std::vector<int64_t> numbers;
  for (const auto& word : split_words(text)) {
    if (const auto found = values().find(word); found != values().end()) {
      numbers.push_back(found->second);
    }
  }
  if (numbers.size() == 1) {
    return numbers[0];
  }
  int64_t total = 0;
  auto begin = numbers.begin();
  for (const int64_t scale : {1000000000, 1000000, 1000}) {
    if (std::count(numbers.begin(), numbers.end(), scale) > 1) {
      return std::nullopt;
    }
    const auto found = std::find(numbers.begin(), numbers.end(), scale);
    if (found == numbers.end()) {
      continue;
    }
    const auto multiplier = found < begin ? std::nullopt : form({begin, found});
    if (!multiplier) {
      return std::nullopt;
    }
    total += *multiplier * scale;
    begin = found + 1;
  }
  if (begin == numbers.end()) {
    return numbers.empty() ? std::nullopt : std::optional<int64_t>(total);
  }
  return total + *form({begin, numbers.end()});
}

}  // namespace

std::string first_number_in_words(std::string_view text) {
  const auto phrase = NumberSearch(text).first();
  const auto number = phrase ? read_number(*phrase) : std::nullopt;
  return number ? std::to_string(*number) : "";
}

}  // namespace moe::eval
