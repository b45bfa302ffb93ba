#pragma once
// Accuracy from scores, as lm-evaluation-harness computes it.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/score.h"
#include "core/eval/tasks.h"

namespace moe::eval {

// The index of the largest value; the first one wins a tie.
int64_t first_largest(const std::vector<double>& values);

// acc: the choice with the largest sum of log-probabilities is the right one. acc_norm: the same
// with each sum divided by the choice's length in Unicode characters, without the delimiter (an
// empty choice never wins). 1 or 0.
std::map<std::string, double> question_metrics(const Question& question,
                                               const std::vector<Score>& scores);

struct Mean {
  double value = 0;
  std::optional<double> standard_error;  // sample standard deviation / sqrt(n); none for n = 1
};
Mean mean_of(const std::vector<double>& values);  // at least one value

}  // namespace moe::eval
