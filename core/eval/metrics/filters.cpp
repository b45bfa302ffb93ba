#include "core/eval/metrics/filters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

struct Match {
  size_t begin = 0;  // byte offset
  size_t entry = 0;  // index of the alternative
};

// Returns the leftmost match. If several alternatives match there, returns the first of them, like
// the regular expression `a|b|c`.
std::optional<Match> search(std::string_view text, const std::vector<std::string>& alternatives,
                            bool whole_words, size_t from = 0) {
  for (size_t at = from; at <= text.size(); ++at) {
    for (size_t entry = 0; entry < alternatives.size(); ++entry) {
      const std::string& word = alternatives[entry];
      if (text.substr(at).starts_with(word) &&
          (!whole_words ||
           (is_word_boundary(text, at) && is_word_boundary(text, at + word.size())))) {
        return Match{at, entry};
      }
    }
  }
  return std::nullopt;
}

// Returns true if `text` has an option such as "(A)" at `at`.
bool is_option(std::string_view text, size_t at) {
  return at + 2 < text.size() && text[at] == '(' && text[at + 1] >= 'A' && text[at + 1] <= 'Z' &&
         text[at + 2] == ')';
}

// Returns the text after each "(A)", "(B)" and so on up to a line feed, '^' or '(', in lower case
// without punctuation.
std::vector<std::string> parse_options(const std::string& input) {
  std::vector<std::string> options;
  for (size_t at = 0; at < input.size(); ++at) {
    if (is_option(input, at)) {
      const size_t end = std::min(input.find_first_of("\n^(", at + 3), input.size());
      options.push_back(without_punctuation(lower(strip(input.substr(at + 3, end - at - 3)))));
      at = end - 1;
    }
  }
  return options;
}

std::string option_letter(size_t option) { return {'(', static_cast<char>('A' + option), ')'}; }

// Returns the length of an option in the harness's regular expression, in which some characters are
// escaped by a backslash.
int64_t escaped_length(const std::string& option) {
  return count_code_points(option) + std::ranges::count_if(option, [](char c) {
           return std::string_view("+|^$~ \t\n\r\v\f").find(c) != std::string_view::npos;
         });
}

// Returns the option whose text occurs first in `answer`, or "" if none does. The harness's regular
// expression lists longer options first.
std::string option_by_text(const std::string& answer, const std::vector<std::string>& options) {
  std::vector<std::string> longest_first = options;
  std::ranges::stable_sort(longest_first, [](const auto& a, const auto& b) {
    return escaped_length(a) > escaped_length(b);
  });
  const auto match = search(without_punctuation(lower(answer)), longest_first, false);
  if (!match) {
    return "";
  }
  // Several options may have the same text. The last one counts, as in the harness's dictionary.
  const std::string text = strip(longest_first[match->entry]);
  const auto last = std::find(options.rbegin(), options.rend(), text);
  return text.empty() || last == options.rend()
             ? text
             : option_letter(static_cast<size_t>(options.rend() - last) - 1);
}

// Returns the first option whose letter follows a colon and white space, or "" if there is none.
std::string option_after_colon(const std::string& answer, size_t options) {
  for (size_t at = answer.find(':'); at != std::string::npos; at = answer.find(':', at + 1)) {
    const std::string_view rest = left_strip(std::string_view(answer).substr(at + 1));
    if (!rest.empty() && rest[0] >= 'A' && static_cast<size_t>(rest[0] - 'A') < options) {
      return option_letter(static_cast<size_t>(rest[0] - 'A'));
    }
  }
  return "";
}

// Returns the first sequence of `characters` in `text`, stripped of white space.
std::string first_run(std::string_view text, std::string_view characters) {
  const size_t begin = text.find_first_of(characters);
  if (begin == std::string_view::npos) {
    return kNoMatch;
  }
  const size_t end = std::min(text.find_first_not_of(characters, begin), text.size());
  return strip(text.substr(begin, end - begin));
}

// Returns `text` in lower case without the characters that exact_match() can ignore.
std::string normalize(std::string text) {
  const size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  if (text.ends_with('.')) {
    text.pop_back();
  } else if (end > 0 && text[end - 1] == '.') {
    text.erase(end - 1, 1);
  }
  std::erase_if(text, [](char c) { return c == ',' || c == '\n' || c == '\\' || c == '"'; });
  return lower(text);
}

// Numbers such as "twenty three thousand and five". NumberSearch backtracks like the harness's
// regular expression and reproduces its errors: "six" alone is not a number. parse_number() follows
// word2number 1.1.

// Returns the number words of the regular expression, in its order. `with_stems`: includes stems
// such as "six". `with_eight`: includes "eight".
std::vector<std::string> number_words(bool with_stems, bool with_eight) {
  std::vector<std::string> words = {"zero", "one", "two", "three", "four", "five"};
  for (const char* stem : {"twen", "thir", "for", "fif", "six", "seven", "nine"}) {
    if (with_stems) {
      words.emplace_back(stem);
    }
    words.push_back(std::string(stem) + "teen");
    words.push_back(std::string(stem) + "ty");
  }
  if (with_eight) {
    words.emplace_back("eight");
  }
  for (const char* word : {"eighteen", "eighty", "ten", "eleven", "twelve", "fourteen", "hundred",
                           "thousand", "million", "billion", "trillion"}) {
    words.emplace_back(word);
  }
  return words;
}

// Finds a first word, one or more words or separators, and a last word; or a last word alone.
class NumberSearch {
 public:
  explicit NumberSearch(std::string_view text) : text_(text) {}

  std::optional<std::string> first() const {
    for (size_t begin = 0; begin < text_.size(); ++begin) {
      auto end = match(first_, begin, [&](size_t at) { return match_rest(at); });
      end = end ? end : match_last(begin);
      if (end) {
        return std::string(text_.substr(begin, *end - begin));
      }
    }
    return std::nullopt;
  }

 private:
  // Returns the first result of match_next(end of word), over the words in `words` that begin at
  // `at`.
  template <typename MatchNext>
  std::optional<size_t> match(const std::vector<std::string>& words, size_t at,
                              const MatchNext& match_next) const {
    for (const auto& word : words) {
      if (text_.substr(at).starts_with(word)) {
        if (const std::optional<size_t> end = match_next(at + word.size())) {
          return end;
        }
      }
    }
    return std::nullopt;
  }

  std::optional<size_t> match_last(size_t at) const {
    return match(last_, at, [](size_t end) { return std::optional(end); });
  }

  // Matches one or more words or separators, then a last word. Returns the end of the match.
  // Greedy: tries the longest sequence first.
  std::optional<size_t> match_rest(size_t at) const {
    return match(middle_, at, [&](size_t end) {
      const std::optional<size_t> longer = match_rest(end);
      return longer ? longer : match_last(end);
    });
  }

  static std::vector<std::string> with_separators() {
    std::vector<std::string> words = number_words(true, false);
    for (const char* separator : {" ", "\t", "\f", "\v", "\xC2\xA0", ",", "and", "&"}) {
      words.emplace_back(separator);
    }
    return words;
  }

  std::string_view text_;
  std::vector<std::string> first_ = number_words(false, true);
  std::vector<std::string> middle_ = with_separators();
  std::vector<std::string> last_ = number_words(false, false);
};

const std::map<std::string, int64_t>& number_values() {
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

// number_formation() of word2number: combines up to four numbers below a thousand.
std::optional<int64_t> combine(const std::vector<int64_t>& n) {
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

// word_to_num() of word2number, without decimals. Returns nullopt if word_to_num() raises an error.
std::optional<int64_t> parse_number(const std::string& text) {
  std::vector<int64_t> numbers;
  for (const auto& word : split_words(text)) {
    if (const auto found = number_values().find(word); found != number_values().end()) {
      numbers.push_back(found->second);
    }
  }
  if (numbers.size() == 1) {
    return numbers[0];
  }
  int64_t total = 0;
  auto begin = numbers.begin();
  for (const int64_t scale : {1000000000, 1000000, 1000}) {
    if (std::ranges::count(numbers, scale) > 1) {
      return std::nullopt;
    }
    const auto found = std::ranges::find(numbers, scale);
    if (found == numbers.end()) {
      continue;
    }
    const auto multiplier = found < begin ? std::nullopt : combine({begin, found});
    if (!multiplier) {
      return std::nullopt;
    }
    total += *multiplier * scale;
    begin = found + 1;
  }
  if (begin == numbers.end()) {
    return numbers.empty() ? std::nullopt : std::optional<int64_t>(total);
  }
  return total + *combine({begin, numbers.end()});
}

}  // namespace

std::string first_word(std::string_view answer, const std::vector<std::string>& words) {
  const auto match = search(answer, words, true);
  return match ? words[match->entry] : kNoMatch;
}

std::string first_phrase(std::string_view answer, const std::vector<Phrases>& groups) {
  std::vector<std::string> phrases, values;  // one value per phrase
  for (const auto& group : groups) {
    phrases.insert(phrases.end(), group.phrases.begin(), group.phrases.end());
    values.resize(phrases.size(), group.value);
  }
  const auto match = search(lower(answer), phrases, true);
  return match ? values[match->entry] : kNoMatch;
}

std::string first_option(const std::string& answer, const OrderedJson& document) {
  for (size_t at = answer.find('('); at != std::string::npos; at = answer.find('(', at + 1)) {
    if (is_option(answer, at)) {
      return answer.substr(at, 3);
    }
  }
  const auto options = parse_options(document.at("input").get<std::string>());
  std::string option = option_by_text(answer, options);
  if (option.empty()) {
    option = option_after_colon(answer, options.size());
  }
  return option.empty() ? kNoMatch : option;
}

std::string first_number(const std::string& answer, const OrderedJson&) {
  const std::string digits = first_run(answer, "-0123456789");
  if (digits != kNoMatch) {
    return digits;
  }
  const std::string text = lower(answer);
  const auto phrase = NumberSearch(text).first();
  const auto number = phrase ? parse_number(*phrase) : std::nullopt;
  return number ? std::to_string(*number) : kNoMatch;
}

std::string first_brackets(const std::string& answer, const OrderedJson&) {
  return first_run(answer, "\" [](<{}>)");
}

std::string sorted_words(const std::string& answer, const OrderedJson& document) {
  const std::string input = document.at("input").get<std::string>();
  const size_t list = input.find("List:");
  if (list == std::string::npos) {
    return kNoMatch;
  }
  const size_t begin = list + 5;
  const auto words = split_words(input.substr(begin, input.find("List:", begin) - begin));
  std::vector<std::string> found;
  for (auto match = search(answer, words, true); match;) {
    const std::string& word = words[match->entry];
    std::erase(found, word);
    found.push_back(word);
    match = search(answer, words, true, match->begin + word.size());
  }
  return fmt::format("{}", fmt::join(found, " "));
}

double exact_match(const std::string& answer, const std::string& target,
                   bool ignores_case_and_punctuation) {
  const bool same =
      ignores_case_and_punctuation ? normalize(answer) == normalize(target) : answer == target;
  return same ? 1.0 : 0.0;
}

}  // namespace moe::eval
