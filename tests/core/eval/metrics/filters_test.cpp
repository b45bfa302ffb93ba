// Filters of generated answers; expected values are those of lm-evaluation-harness 0.4.13.
#include "core/eval/metrics/filters.h"

#include "tests/support/catch.h"

namespace moe::eval {
namespace {

TEST_CASE("words and phrases match at word boundaries, the leftmost first", "[eval]") {
  const std::vector<std::string> words = {"Yes", "No", "yes", "no"};
  CHECK(first_word(" Yes", words) == "Yes");
  CHECK(first_word(" Nope no", words) == "no");
  CHECK(first_word("éno no", words) == "no");  // é is a letter
  CHECK(first_word("a_no", words) == kNoMatch);
  const std::vector<Phrases> groups = {{"no", {"no", "not plausible"}},
                                       {"yes", {"yes", "plausible"}}};
  CHECK(first_phrase(" Not plausible", groups) == "no");
  CHECK(first_phrase(" plausible", groups) == "yes");
  CHECK(first_phrase(" Yes, no", groups) == "yes");
  CHECK(first_phrase(" know", groups) == kNoMatch);
  CHECK(first_phrase(" not", groups) == kNoMatch);
}

TEST_CASE("an option is its letter, else its text, else a letter after a colon", "[eval]") {
  const OrderedJson document = {
      {"input", "Which?\nOptions:\n(A) a red-ball\n(B) a red ball!\n(C) - blue\n(D) red"}};
  const std::pair<const char*, const char*> cases[] = {
      {" (B) is it", "(B)"},     {" It is (a) red", "(D)"}, {" A Red Ball.", "(B)"},
      {" the BLUE one", "blue"},  // as the harness: the option begins with punctuation
      {" - blue it", "blue"},    {" x: C", "(C)"},          {" x:\n E", "[invalid]"},
      {" answer: D, x", "(D)"},  {" nothing", "[invalid]"}, {"", "[invalid]"},
      {" red", "(D)"},           {" (b) : B", "(B)"},       {"redball", "(D)"}};
  for (const auto& [answer, option] : cases) {
    CAPTURE(answer);
    CHECK(first_option(answer, document) == option);
  }
  CHECK(first_option("x: A", {{"input", "no options"}}) == kNoMatch);
}

TEST_CASE("numbers are digits, else English words as the harness finds and reads them", "[eval]") {
  const std::pair<const char*, const char*> cases[] = {
      {" 12 apples", "12"},
      {" -3", "-3"},
      {" - x", "-"},
      {" There are twenty three, and five", "25"},
      {" six", "[invalid]"},
      {" sixteen", "16"},
      {" sixty five", "65"},
      {" one day", "1"},
      {" One hundred and twenty", "120"},
      {" two thousand and five hundred", "2500"},
      {" eight", "[invalid]"},
      {" eightyeight", "80"},
      {" someone", "1"},
      {" seven nine", "[invalid]"},
      {" three six four", "22"},
      {" ninety nine thousand one hundred", "99100"},
      {" two hundred million and one", "200000001"},
      {" one hundred, two hundred", "102"},
      {" one,two", "[invalid]"},                      // the harness stops with an error
      {" five thousand five thousand", "[invalid]"},  // as above
      {" thousand", "1000"},
      {"fourteen", "4"},
      {"one and", "1"},
      {"one hundred two three four five", "1"},
      {"", "[invalid]"}};
  for (const auto& [answer, number] : cases) {
    CAPTURE(answer);
    CHECK(first_number(answer, {}) == number);
  }
}

TEST_CASE("brackets are the first run, words are in the order of their last occurrence", "[eval]") {
  CHECK(first_brackets(" ] )", {}) == "] )");
  CHECK(first_brackets("x] >y", {}) == "] >");
  CHECK(first_brackets("abc", {}) == kNoMatch);
  CHECK(first_brackets("a b", {}).empty());
  const OrderedJson list = {{"input", "Sort: List: c b a"}};
  CHECK(sorted_words(" a, b. a c", list) == "b a c");
  CHECK(sorted_words(" xa b-c", list) == "b c");
  CHECK(sorted_words("c b a b", list) == "c a b");
  CHECK(sorted_words("", list).empty());
}

TEST_CASE("exact_match ignores punctuation and case only if the task has ignore_case", "[eval]") {
  CHECK(exact_match(" False.", "False", true) == 0.0);  // a leading space counts
  CHECK(exact_match("False.", "false", true) == 1.0);
  CHECK(exact_match("(A).\n", "(a)", true) == 1.0);
  CHECK(exact_match("a, b", "a b", true) == 1.0);
  CHECK(exact_match("a.b.", "a.b", true) == 1.0);
  CHECK(exact_match("False.", "False", false) == 0.0);
  CHECK(exact_match("False", "False", false) == 1.0);
}

}  // namespace
}  // namespace moe::eval
