#include "core/eval/metrics/metrics.h"

#include <map>

#include "core/eval/metrics/filters.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

std::map<std::string, double> compute(std::vector<std::string> choices, int64_t gold,
                                      const std::vector<double>& sums) {
  const Question question{{}, "", std::move(choices), gold, ""};
  std::vector<Score> scores;
  for (const double sum : sums) {
    scores.push_back({sum, false, 1});
  }
  std::map<std::string, double> values;
  for (const auto& metric : choice_metrics()) {
    values[metric.name] = metric.compute(question, scores);
  }
  return values;
}

TEST_CASE("acc takes the largest sum, acc_norm per character, acc_bytes per byte", "[eval]") {
  struct Case {
    std::vector<std::string> choices;
    int64_t gold;
    std::vector<double> sums;
    std::map<std::string, double> expected;
  };
  for (const auto& [choices, gold, sums, expected] : std::vector<Case>{
           {{"ab", "abcdefghij"}, 1, {-4.0, -5.0}, {{"acc", 0}, {"acc_norm", 1}}},
           // 4 characters (-1 each) and 8 bytes (-0.5 each), against -0.9.
           {{"éééé", "abcde"}, 1, {-4.0, -4.5}, {{"acc_norm", 1}, {"acc_bytes", 0}}},
           // A ligature, which is two letters after NFKC, counts as one character.
           {{"\xEF\xAC\x81", "ab"}, 0, {-1.5, -3.2}, {{"acc_norm", 1}}},
           // The first of equal sums is chosen.
           {{"same", "same", "x"}, 0, {-1.0, -1.0, -2.0}, {{"acc", 1}}},
           {{"same", "same", "x"}, 1, {-1.0, -1.0, -2.0}, {{"acc", 0}}},
           {{"x", "same", "same"}, 1, {-2.0, -1.0, -1.0}, {{"acc", 1}}},
           {{"", "abc"}, 0, {-1.0, -9.0}, {{"acc", 1}, {"acc_norm", 0}}},
           // The gold index is no choice.
           {{"a", "b"}, -1, {-1.0, -2.0}, {{"acc", 0}, {"acc_norm", 0}, {"exact_match", 0}}}}) {
    CAPTURE(choices, gold);
    const auto metrics = compute(choices, gold, sums);
    for (const auto& [name, value] : expected) {
      CHECK(metrics.at(name) == value);
    }
  }
}

TEST_CASE("the standard error is the sample standard deviation over the root of n", "[eval]") {
  // Four right of twenty: sqrt(0.2 * 0.8 * 20 / 19 / 20), as the harness prints for 0.2 with n
  // = 20.
  std::vector<double> values(20, 0.0);
  values[3] = values[5] = values[7] = values[9] = 1.0;
  const Mean mean = compute_mean(values);
  CHECK(mean.value == Approx(0.2).epsilon(1e-14));
  CHECK(mean.standard_error.value() == Approx(0.0917662935482247).epsilon(1e-12));
  CHECK_FALSE(compute_mean({1.0}).standard_error.has_value());
  CHECK(compute_mean({1.0, 1.0}).standard_error.value() == 0.0);
}

TEST_CASE("F1 over three classes is the mean of each against the rest", "[eval]") {
  // Class 0: chosen at 0, 1, right at 0, 2 -> 2 * 1 / 4. Class 1: chosen at 2, 3, right at 1, 3 ->
  // 1 / 2. Class 2: nowhere -> 0 (as sklearn).
  const Mean mean = aggregate(known_task_metric("macro_f1"), {0, 0, 1, 1}, {0, 1, 0, 1});
  CHECK(mean.value == Approx((0.5 + 0.5 + 0) / 3));
  CHECK_FALSE(mean.standard_error.has_value());
  CHECK(aggregate(choice_metric("f1"), {0, 0, 1, 1}, {0, 1, 0, 1}).value == Approx(0.5));
}

TEST_CASE("perplexity and its bootstrapped error equal the harness's", "[eval]") {
  // lm_eval.api.metrics: perplexity([-1, -2.5, -.5, -4]), bootstrap_stderr with 2000 and 500.
  const std::vector<double> values = {-1.0, -2.5, -0.5, -4.0};
  const Mean mean = aggregate(perplexity(), values, {0, 0, 0, 0}, 2000);
  CHECK(mean.value == Approx(7.38905609893065).epsilon(1e-13));
  CHECK(mean.standard_error.value() == Approx(7.53276472344242).epsilon(1e-12));
  CHECK(aggregate(perplexity(), values, {}, 500).standard_error.value() ==
        Approx(7.74159981416363).epsilon(1e-12));
  CHECK_FALSE(aggregate(perplexity(), values, {}, 0).standard_error.has_value());
}

TEST_CASE("mc2 is the probability mass of the right answers, however small all are", "[eval]") {
  Question question;
  question.fields = {{"mc2_targets", {{"choices", {"a", "b", "c"}}, {"labels", {1, 0, 1}}}}};
  const Metric mass = known_task_metric("mc2");
  CHECK(mass.compute(question, {{-1, false, 1}, {-2, false, 1}, {-3, false, 1}}) ==
        Approx((std::exp(-1) + std::exp(-3)) / (std::exp(-1) + std::exp(-2) + std::exp(-3))));
  CHECK(mass.compute(question, {{-1000, false, 1}, {-1000, false, 1}, {-1000, false, 1}}) ==
        Approx(2.0 / 3));
}

TEST_CASE("ReCoRD compares words as SQuAD does and takes the best answer", "[eval]") {
  CHECK((squad_words("The U.S. a-Team, an  AN apple!") ==
         std::vector<std::string>{"us", "ateam", "apple"}));
  Question question;
  question.fields = {{"entities", {"the White House", "House"}}, {"answers", {"Senate", "House"}}};
  const std::vector<Score> scores = {{-1, false, 1}, {-2, false, 1}};
  CHECK(known_task_metric("record_em").compute(question, scores) == 0.0);
  CHECK(known_task_metric("record_f1").compute(question, scores) == Approx(2.0 / 3));
  question.fields["answers"] = {"white house."};
  CHECK(known_task_metric("record_em").compute(question, scores) == 1.0);
  CHECK(known_task_metric("record_f1").compute(question, scores) == 1.0);
}

// Values printed by CPython 3.11.
TEST_CASE("random() and sample() give the numbers of CPython", "[eval]") {
  PythonRandom random(1234);
  CHECK(random.uniform() == 0.9664535356921388);
  CHECK(random.uniform() == 0.4407325991753527);
  CHECK(random.uniform() == 0.007491470058587191);
  PythonRandom samples(1234);
  CHECK((samples.sample(10, 4) == std::vector<uint64_t>{7, 1, 0, 9}));
  CHECK((samples.sample(1000, 6) == std::vector<uint64_t>{932, 965, 961, 826, 596, 35}));
  CHECK((samples.sample(100000, 3) == std::vector<uint64_t>{88023, 90844, 11001}));
  CHECK((samples.sample(30, 6) == std::vector<uint64_t>{3, 24, 11, 7, 0, 25}));
  PythonRandom zero(0);
  CHECK(zero.uniform() == 0.8444218515250481);
  CHECK((zero.sample(21, 21) == std::vector<uint64_t>{13, 1, 8, 16, 15, 12, 14, 17, 4,  7, 5,
                                                      9,  3, 2, 11, 19, 0,  6,  18, 20, 10}));
}

TEST_CASE("an unknown metric is refused with the known ones", "[eval]") {
  CHECK_THAT(test::user_error_of([] { choice_metric("bleu"); }),
             test::contains_text("'bleu'") && test::contains_text("acc, acc_norm, acc_bytes"));
}

// Filters of generated answers; expected values are those of lm-evaluation-harness 0.4.13.

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
