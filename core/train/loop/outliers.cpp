#include "core/train/loop/outliers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moe::train {

namespace {

struct Spread {
  double mean = 0, deviation = 0;
};

// Afresh at every step, in the window's order: nothing drifts, and a run that goes on adds up the
// same numbers in the same order.
Spread spread_of(const std::vector<double>& values) {
  // Values that are all but equal still differ by their own rounding, which is no news.
  constexpr double kLeastShare = 1e-6;
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
  }
  const double mean = sum / count;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return {mean, std::max(std::sqrt(squares / (count - 1)), kLeastShare * std::abs(mean))};
}

// Enters `value`; says how it broke the bound, if it did.
std::string judge_value(std::vector<double>& values, const char* name, double value, double z) {
  std::string why;
  double entered = value;
  if (static_cast<int64_t>(values.size()) >= kOutlierStart) {
    const Spread spread = spread_of(values);
    const double bound = spread.mean + z * spread.deviation;
    if (value > bound) {
      why = fmt::format(
          "the {} {:.4g} lies {:.3g} standard deviations above the mean {:.4g} of "
          "the last {} steps",
          name, value, (value - spread.mean) / spread.deviation, spread.mean, values.size());
      entered = bound;
    }
  }
  values.push_back(entered);
  if (static_cast<int64_t>(values.size()) > kOutlierWindow) {
    values.erase(values.begin());
  }
  return why;
}

}  // namespace

std::optional<std::string> judge_step(OutlierWindow& window, double loss, double norm, double z) {
  std::string why = judge_value(window.losses, "loss", loss, z);
  const std::string why_norm = judge_value(window.norms, "gradient norm", norm, z);
  why += (why.empty() || why_norm.empty() ? "" : ", ") + why_norm;
  if (why.empty()) {
    window.in_a_row = 0;
    return std::nullopt;
  }
  if (++window.in_a_row == kMostOutliersInARow) {
    window = {{loss}, {norm}, 0};
    why += fmt::format(
        "; it is the {}th in a row, so this is taken for the new level: the next {} "
        "steps are not judged",
        kMostOutliersInARow, kOutlierStart - 1);
  }
  return why;
}

}  // namespace moe::train
