#include <cmath>

#include "core/base/random.h"
#include "core/train/step/optimizer.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::train;

namespace {

constexpr double kZ = 6;

// A window after `steps` ordinary steps: losses around 2 and norms around 1, normally spread.
struct Run {
  Random random{3};
  OutlierWindow window;

  explicit Run(int64_t steps = kOutlierWindow) {
    for (int64_t step = 0; step < steps; ++step) {
      CHECK_FALSE(find_outlier(window, loss(), norm(), kZ));
    }
  }
  double loss() { return 2 + 0.1 * random.normal(); }
  double norm() { return 1 + 0.2 * random.normal(); }
};

// Reference: mean + kZ standard deviations.
double upper_bound(const std::vector<double>& values) {
  double mean = 0, variance = 0;
  for (const double value : values) {
    mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    variance += (value - mean) * (value - mean) / (static_cast<double>(values.size()) - 1);
  }
  return mean + kZ * std::sqrt(variance);
}

// True if the step is an outlier and its description has `part`.
bool has_reason(const std::optional<std::string>& why, const std::string& part) {
  INFO(why.value_or("no outlier"));
  return why && why->find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a step is an outlier if its loss or gradient norm is above the bound of the window",
          "[train]") {
  const Run run;
  const double loss = upper_bound(run.window.losses), norm = upper_bound(run.window.norms);
  const auto judged = [&](double loss_value, double norm_value) {
    OutlierWindow window = run.window;
    return find_outlier(window, loss_value, norm_value, kZ);
  };
  CHECK_FALSE(judged(loss - 1e-9, norm - 1e-9));
  CHECK(has_reason(judged(loss + 1e-9, 1), "the loss 2."));
  CHECK(has_reason(judged(2, norm + 1e-9), "the gradient norm 2."));
  CHECK(has_reason(judged(2, norm + 1e-9), "6 standard deviations"));
  CHECK(has_reason(judged(9, 9), "128 steps"));
  CHECK_FALSE(judged(-100, 0));
}

TEST_CASE("there are no outliers before 64 steps, or within the rounding of equal values",
          "[train]") {
  Run young(kOutlierStart - 1);
  CHECK_FALSE(find_outlier(young.window, 1e6, 1e6, kZ));
  OutlierWindow level;
  for (int step = 0; step < 200; ++step) {
    CHECK_FALSE(find_outlier(level, 2 + 1e-7 * (step % 3), 1, kZ));
  }
  CHECK(find_outlier(level, 2.1, 1, kZ));
}

TEST_CASE("the window has the last 128 steps, with outliers clipped to the bound", "[train]") {
  Run run(300);
  CHECK(run.window.losses.size() == 128);
  CHECK(run.window.norms.size() == 128);
  const double bound = upper_bound(run.window.losses);
  REQUIRE(find_outlier(run.window, 1e6, 1.1, kZ));
  CHECK(run.window.losses.back() == Approx(bound).epsilon(1e-12));
  CHECK(run.window.norms.back() == 1.1);
  CHECK(run.window.in_a_row == 1);
  // The next, smaller outlier is found. Unclipped, the first would have raised the bound to 5e5.
  CHECK(has_reason(find_outlier(run.window, 4, 1, kZ), "the loss 4"));
  CHECK_FALSE(find_outlier(run.window, 2, 1, kZ));
  CHECK(run.window.in_a_row == 0);
}

TEST_CASE("16 outliers in a row are accepted as a new level", "[train]") {
  Run run;
  for (int64_t step = 1; step < kMaxConsecutiveOutliers; ++step) {
    const auto why = find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ);
    REQUIRE(why);
    CHECK(why->find("in a row") == std::string::npos);
  }
  CHECK(has_reason(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ), "16th in a row"));
  for (int step = 0; step < 300; ++step) {
    CHECK_FALSE(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ));
  }
  CHECK(has_reason(find_outlier(run.window, 1e5 + 4, 1, kZ), "the loss"));
}
