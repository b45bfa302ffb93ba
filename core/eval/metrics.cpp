#include "core/eval/metrics.h"

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/eval/text.h"

namespace moe::eval {

int64_t first_largest(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    best = values[i] > values[best] ? i : best;
  }
  return static_cast<int64_t>(best);
}

std::map<std::string, double> question_metrics(const Question& question,
                                               const std::vector<Score>& scores) {
  MOE_CHECK(
      scores.size() == question.choices.size(), "{} {}", scores.size(), question.choices.size());
  std::vector<double> sums, per_character;
  for (size_t i = 0; i < scores.size(); ++i) {
    const int64_t length = count_code_points(question.choices[i]);
    sums.push_back(scores[i].logprob);
    per_character.push_back(length == 0 ? -std::numeric_limits<double>::infinity()
                                        : scores[i].logprob / static_cast<double>(length));
  }
  return {{"acc", first_largest(sums) == question.gold ? 1.0 : 0.0},
          {"acc_norm", first_largest(per_character) == question.gold ? 1.0 : 0.0}};
}

Mean mean_of(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  Mean mean{sum / n, std::nullopt};
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) {
      squares += (value - mean.value) * (value - mean.value);
    }
    mean.standard_error = std::sqrt(squares / (n - 1)) / std::sqrt(n);
  }
  return mean;
}

}  // namespace moe::eval
