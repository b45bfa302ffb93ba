#include "core/eval/metrics.h"

#include "tests/support/catch.h"

namespace moe::eval {
namespace {

std::map<std::string, double> judge(std::vector<std::string> choices,
                                    int64_t gold,
                                    const std::vector<double>& sums) {
  const Question question{{}, "", std::move(choices), gold, ""};
  std::vector<Score> scores;
  for (const double sum : sums) {
    scores.push_back({sum, false, 1});
  }
  return question_metrics(question, scores);
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
}

TEST_CASE("the first of equal sums wins, so identical choices favour the first", "[eval]") {
  CHECK(judge({"same", "same", "x"}, 0, {-1.0, -1.0, -2.0}).at("acc") == 1.0);
  CHECK(judge({"same", "same", "x"}, 1, {-1.0, -1.0, -2.0}).at("acc") == 0.0);
  CHECK(first_largest({3.0, 5.0, 5.0}) == 1);
}

TEST_CASE("an empty choice may win acc and never acc_norm", "[eval]") {
  const auto metrics = judge({"", "abc"}, 0, {-1.0, -9.0});
  CHECK(metrics.at("acc") == 1.0);
  CHECK(metrics.at("acc_norm") == 0.0);
}

TEST_CASE("the standard error is the sample standard deviation over the root of n", "[eval]") {
  // Four right of twenty: sqrt(0.2 * 0.8 * 20 / 19 / 20), what the harness prints for 0.2 with n
  // = 20.
  std::vector<double> values(20, 0.0);
  values[3] = values[5] = values[7] = values[9] = 1.0;
  const Mean mean = mean_of(values);
  CHECK(mean.value == Approx(0.2).epsilon(1e-14));
  CHECK(mean.standard_error.value() == Approx(0.0917662935482247).epsilon(1e-12));
  CHECK_FALSE(mean_of({1.0}).standard_error.has_value());
  CHECK(mean_of({1.0, 1.0}).standard_error.value() == 0.0);
}

}  // namespace
}  // namespace moe::eval
