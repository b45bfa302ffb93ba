// Many questions, one number and its standard error.
#include <array>
#include <cmath>

#include "core/base/error.h"
#include "core/eval/metrics.h"
#include "core/eval/python_random.h"

namespace moe::eval {
namespace {

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum;
}

double sample_deviation(const std::vector<double>& values) {
  const double mean = sum_of(values) / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double exp_of_minus_mean(const std::vector<double>& values) {
  return std::exp(-sum_of(values) / static_cast<double>(values.size()));
}

// Chunks of up to 1000 samples, chunk i drawn by Random(i).
double bootstrap_deviation(const std::vector<double>& values, int64_t resamples) {
  const int64_t chunk = std::min<int64_t>(1000, resamples);
  std::vector<double> statistics;
  const auto n = static_cast<double>(values.size());
  for (int64_t i = 0; i < resamples / chunk; ++i) {
    PythonRandom random(static_cast<uint32_t>(i));
    for (int64_t j = 0; j < chunk; ++j) {
      double sum = 0;
      for (size_t draw = 0; draw < values.size(); ++draw) {
        sum += values[static_cast<size_t>(random.uniform() * n)];
      }
      statistics.push_back(std::exp(-sum / n));
    }
  }
  return sample_deviation(statistics);
}

// F1 of one class; 0 where it is neither right nor picked anywhere.
double class_f1(const std::vector<double>& picks, const std::vector<int64_t>& golds, int64_t kind) {
  MOE_CHECK(picks.size() == golds.size(), "{} {}", picks.size(), golds.size());
  int64_t both = 0, either = 0;
  for (size_t i = 0; i < picks.size(); ++i) {
    const bool picked = static_cast<int64_t>(picks[i]) == kind;
    const bool right = golds[i] == kind;
    both += picked && right ? 1 : 0;
    either += (picked ? 1 : 0) + (right ? 1 : 0);
  }
  return either == 0 ? 0.0 : 2.0 * static_cast<double>(both) / static_cast<double>(either);
}

}  // namespace

Mean mean_of(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  const auto n = static_cast<double>(values.size());
  Mean mean{sum_of(values) / n, std::nullopt};
  if (values.size() > 1) {
    mean.standard_error = sample_deviation(values) / std::sqrt(n);
  }
  return mean;
}

Mean aggregate(const Metric& metric, const std::vector<double>& values,
               const std::vector<int64_t>& golds, int64_t resamples) {
  MOE_CHECK(!values.empty(), "no values");
  switch (metric.aggregation) {
    case Aggregation::kMean:
      return mean_of(values);
    case Aggregation::kBinaryF1:
      return {class_f1(values, golds, 1), std::nullopt};
    case Aggregation::kMacroF1:
      break;
    case Aggregation::kPerplexity: {
      Mean mean{exp_of_minus_mean(values), std::nullopt};
      if (values.size() > 1 && resamples > 0) {
        mean.standard_error = bootstrap_deviation(values, resamples);
      }
      return mean;
    }
  }
  double sum = 0;
  for (const int64_t kind : std::array<int64_t, 3>{0, 1, 2}) {
    sum += class_f1(values, golds, kind);
  }
  return {sum / 3, std::nullopt};
}

}  // namespace moe::eval
