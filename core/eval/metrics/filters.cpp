#include "core/eval/metrics/filters.h"

#include <algorithm>
#include <optional>

#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

struct Match {
  size_t begin = 0, entry = 0;  // where, and which of the alternatives
};

// Leftmost, then the first alternative: as a regular expression `a|b|c` searches.
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

// What stands after "(A)", "(B)", .. up to a line feed, '^' or '('.
std::vector<std::string> options_of(const std::string& input) {
  std::vector<std::string> options;
  for (size_t at = 0; at + 2 < input.size(); ++at) {
    if (input[at] == '(' && input[at + 1] >= 'A' && input[at + 1] <= 'Z' && input[at + 2] == ')') {
      const size_t begin = at + 3;
      const size_t end = std::min(input.find_first_of("\n^(", begin), input.size());
      options.push_back(without_punctuation(lower(strip(input.substr(begin, end - begin)))));
      at = end - 1;
    }
  }
  return options;
}

std::string letter_of(size_t option) { return {'(', static_cast<char>('A' + option), ')'}; }

// The length of an option in the harness's expression, where a backslash stands before each of
// these; longer options are tried first.
int64_t escaped_length(const std::string& option) {
  return count_code_points(option) + std::count_if(option.begin(), option.end(), [](char c) {
           return std::string_view("+|^$~ \t\n\r\v\f").find(c) != std::string_view::npos;
         });
}

std::string option_by_text(const std::string& answer, const std::vector<std::string>& options) {
  std::vector<std::string> longest_first = options;
  std::stable_sort(longest_first.begin(), longest_first.end(), [](const auto& a, const auto& b) {
    return escaped_length(a) > escaped_length(b);
  });
  const auto match = search(without_punctuation(lower(answer)), longest_first, false);
  if (!match) {
    return "";
  }
  // Of equal texts the last letter stands: a later entry of the harness's dictionary replaces it.
  const std::string text = strip(longest_first[match->entry]);
  const auto last = std::find(options.rbegin(), options.rend(), text);
  return text.empty() || last == options.rend()
             ? text
             : letter_of(static_cast<size_t>(options.rend() - last) - 1);
}

// A colon, white space, the letter of an option.
std::string option_after_colon(const std::string& answer, size_t options) {
  for (size_t at = answer.find(':'); at != std::string::npos; at = answer.find(':', at + 1)) {
    const std::string_view rest = left_strip(std::string_view(answer).substr(at + 1));
    if (options == 0) {
      break;
    }
    if (!rest.empty() && rest[0] >= 'A' && static_cast<size_t>(rest[0] - 'A') < options) {
      return letter_of(static_cast<size_t>(rest[0] - 'A'));
    }
  }
  return "";
}

std::string run_of(std::string_view text, std::string_view characters) {
  const size_t begin = text.find_first_of(characters);
  if (begin == std::string_view::npos) {
    return kNoMatch;
  }
  const size_t end = std::min(text.find_first_not_of(characters, begin), text.size());
  return strip(text.substr(begin, end - begin));
}

std::string without_marks(std::string text) {
  const size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  if (text.ends_with('.')) {
    text.pop_back();
  } else if (end > 0 && text[end - 1] == '.') {
    text.erase(end - 1, 1);
  }
  std::erase_if(text, [](char c) { return c == ',' || c == '\n' || c == '\\' || c == '"'; });
  return lower(text);
}

}  // namespace

std::string first_word(std::string_view answer, const std::vector<std::string>& words) {
  const auto match = search(answer, words, true);
  return match ? words[match->entry] : kNoMatch;
}

std::string first_phrase(std::string_view answer, const std::vector<Phrases>& groups) {
  std::vector<std::string> all;
  for (const auto& group : groups) {
    all.insert(all.end(), group.phrases.begin(), group.phrases.end());
  }
  const auto match = search(lower(answer), all, true);
  if (match) {
    for (const auto& group : groups) {
      if (search(all[match->entry], group.phrases, true)) {
        return group.value;
      }
    }
  }
  return kNoMatch;
}

std::string first_option(const std::string& answer, const OrderedJson& document) {
  for (size_t at = answer.find('('); at != std::string::npos; at = answer.find('(', at + 1)) {
    if (at + 2 < answer.size() && answer[at + 1] >= 'A' && answer[at + 1] <= 'Z' &&
        answer[at + 2] == ')') {
      return answer.substr(at, 3);
    }
  }
  const auto options = options_of(document.at("input").get<std::string>());
  std::string option = option_by_text(answer, options);
  if (option.empty()) {
    option = option_after_colon(answer, options.size());
  }
  return option.empty() ? kNoMatch : option;
}

std::string first_number(const std::string& answer, const OrderedJson&) {
  const std::string digits = run_of(answer, "-0123456789");
  if (digits != kNoMatch) {
    return digits;
  }
  const std::string number = first_number_in_words(lower(answer));
  return number.empty() ? kNoMatch : number;
}

std::string first_brackets(const std::string& answer, const OrderedJson&) {
  return run_of(answer, "\" [](<{}>)");
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
  std::string text;
  for (const auto& word : found) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

double exact_match(const std::string& answer, const std::string& target,
                   bool ignores_case_and_marks) {
  const bool same =
      ignores_case_and_marks ? without_marks(answer) == without_marks(target) : answer == target;
  return same ? 1.0 : 0.0;
}

}  // namespace moe::eval
