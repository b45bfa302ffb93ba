#include "core/eval/metrics/metrics.h"

#include <map>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

std::map<std::string, double> judge(std::vector<std::string> choices, int64_t gold,
                                    const std::vector<double>& sums) {
  const Question question{{}, "", std::move(choices), gold, ""};
  std::vector<Score> scores;
  for (const double sum : sums) {
    scores.push_back({sum, false, 1});
  }
  std::map<std::string, double> values;
  for (const auto& metric : choice_metrics()) {
    values[metric.name] = metric.judge(question, scores);
  }
  return values;
}

TEST_CASE("acc takes the largest sum, acc_norm the largest sum per character", "[eval]") {
  const auto metrics = judge({"ab", "abcdefghij"}, 1, {-4.0, -5.0});  // -2 and -0.5 a character
  CHECK(metrics.at("acc") == 0.0);
  CHECK(metrics.at("acc_norm") == 1.0);
}

TEST_CASE("characters are code points, not bytes", "[eval]") {
  // "éééé" is 4 characters and 8 bytes: -1 a character loses to "abcde" with -0.9; by bytes -0.5
  // would win.
  CHECK(judge({"éééé", "abcde"}, 1, {-4.0, -4.5}).at("acc_norm") == 1.0);
  CHECK(judge({"éééé", "abcde"}, 1, {-4.0, -4.5}).at("acc_bytes") == 0.0);
  // This letter is two after NFKC; it counts as one.
  CHECK(judge({"\xEF\xAC\x81", "ab"}, 0, {-1.5, -3.2}).at("acc_norm") == 1.0);
}

TEST_CASE("the first of equal sums wins, so identical choices favour the first", "[eval]") {
  CHECK(judge({"same", "same", "x"}, 0, {-1.0, -1.0, -2.0}).at("acc") == 1.0);
  CHECK(judge({"same", "same", "x"}, 1, {-1.0, -1.0, -2.0}).at("acc") == 0.0);
  CHECK(judge({"x", "same", "same"}, 1, {-2.0, -1.0, -1.0}).at("acc") == 1.0);
}

TEST_CASE("an empty choice may win acc but not acc_norm", "[eval]") {
  const auto metrics = judge({"", "abc"}, 0, {-1.0, -9.0});
  CHECK(metrics.at("acc") == 1.0);
  CHECK(metrics.at("acc_norm") == 0.0);
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

TEST_CASE("a gold index that is no choice counts as wrong", "[eval]") {
  const auto metrics = judge({"a", "b"}, -1, {-1.0, -2.0});
  CHECK(metrics.at("acc") == 0.0);
  CHECK(metrics.at("acc_norm") == 0.0);
  CHECK(metrics.at("exact_match") == 0.0);
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
  CHECK(mass.judge(question, {{-1, false, 1}, {-2, false, 1}, {-3, false, 1}}) ==
        Approx((std::exp(-1) + std::exp(-3)) / (std::exp(-1) + std::exp(-2) + std::exp(-3))));
  CHECK(mass.judge(question, {{-1000, false, 1}, {-1000, false, 1}, {-1000, false, 1}}) ==
        Approx(2.0 / 3));
}

TEST_CASE("ReCoRD compares words as SQuAD does and takes the best answer", "[eval]") {
  CHECK((squad_words("The U.S. a-Team, an  AN apple!") ==
         std::vector<std::string>{"us", "ateam", "apple"}));
  Question question;
  question.fields = {{"entities", {"the White House", "House"}}, {"answers", {"Senate", "House"}}};
  const std::vector<Score> scores = {{-1, false, 1}, {-2, false, 1}};
  CHECK(known_task_metric("record_em").judge(question, scores) == 0.0);
  CHECK(known_task_metric("record_f1").judge(question, scores) == Approx(2.0 / 3));
  question.fields["answers"] = {"white house."};
  CHECK(known_task_metric("record_em").judge(question, scores) == 1.0);
  CHECK(known_task_metric("record_f1").judge(question, scores) == 1.0);
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

}  // namespace
}  // namespace moe::eval
