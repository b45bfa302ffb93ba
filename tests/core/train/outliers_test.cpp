#include <cmath>

#include "core/base/random.h"
#include "core/train/step/updater.h"
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

// The bound of header and formula, the slow obvious way.
double bound_of(const std::vector<double>& values) {
  double mean = 0, variance = 0;
  for (const double value : values) {
    mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    variance += (value - mean) * (value - mean) / (static_cast<double>(values.size()) - 1);
  }
  return mean + kZ * std::sqrt(variance);
}

bool says(const std::optional<std::string>& why, const std::string& part) {
  INFO(why.value_or("ordinary"));
  return why && why->find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a step is an outlier when its loss or its norm lies above the window's bound",
          "[train]") {
  const Run run;
  const double loss = bound_of(run.window.losses), norm = bound_of(run.window.norms);
  const auto judged = [&](double loss_value, double norm_value) {
    OutlierWindow window = run.window;
    return find_outlier(window, loss_value, norm_value, kZ);
  };
  CHECK_FALSE(judged(loss - 1e-9, norm - 1e-9));
  CHECK(says(judged(loss + 1e-9, 1), "the loss 2."));
  CHECK(says(judged(2, norm + 1e-9), "the gradient norm 2."));
  CHECK(says(judged(2, norm + 1e-9), "lies 6 standard deviations above the mean"));
  CHECK(says(judged(9, 9), "of the last 128 steps, the gradient norm 9"));
  CHECK_FALSE(judged(-100, 0));  // what lies below is no accident
}

TEST_CASE("nothing is judged before 64 steps, nor where all are equal but for rounding",
          "[train]") {
  Run young(kOutlierStart - 1);
  CHECK_FALSE(find_outlier(young.window, 1e6, 1e6, kZ));
  OutlierWindow level;
  for (int step = 0; step < 200; ++step) {
    CHECK_FALSE(find_outlier(level, 2 + 1e-7 * (step % 3), 1, kZ));
  }
  CHECK(find_outlier(level, 2.1, 1, kZ));
}

TEST_CASE("the window holds the last 128 steps and an outlier at the bound it broke", "[train]") {
  Run run(300);
  CHECK(run.window.losses.size() == 128);
  CHECK(run.window.norms.size() == 128);
  const double bound = bound_of(run.window.losses);
  REQUIRE(find_outlier(run.window, 1e6, 1.1, kZ));
  CHECK(run.window.losses.back() == Approx(bound).epsilon(1e-12));
  CHECK(run.window.norms.back() == 1.1);
  CHECK(run.window.in_a_row == 1);
  // So the next is seen, though it is a lesser one; entered as it was, the first would have raised
  // the bound to 5e5.
  CHECK(says(find_outlier(run.window, 4, 1, kZ), "the loss 4"));
  CHECK_FALSE(find_outlier(run.window, 2, 1, kZ));
  CHECK(run.window.in_a_row == 0);
}

TEST_CASE("a shift of the level is skipped for some steps and then is the level", "[train]") {
  // In standard deviations. Each step at the bound widens the window by the same share, so the
  // number of steps grows with the logarithm of the shift, up to 16.
  for (const auto& [shift, most] : {std::pair(8.0, 4), std::pair(15.0, 10), std::pair(30.0, 15)}) {
    Run run;
    int skipped = 0;
    while (find_outlier(run.window, run.loss() + 0.1 * shift, run.norm(), kZ)) {
      ++skipped;
      REQUIRE(skipped < kMaxConsecutiveOutliers);
    }
    CAPTURE(shift);
    CHECK(skipped > 0);
    CHECK(skipped <= most);
    int later = 0;
    for (int step = 0; step < 300; ++step) {
      later += find_outlier(run.window, run.loss() + 0.1 * shift, run.norm(), kZ) ? 1 : 0;
    }
    CHECK(later <= 2);  // the highest of the new level, just after the first that passed
  }
}

TEST_CASE("16 outliers in a row are said to be a new level, and the run goes on", "[train]") {
  Run run;
  for (int64_t step = 1; step < kMaxConsecutiveOutliers; ++step) {
    const auto why = find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ);
    REQUIRE(why);
    CHECK(why->find("in a row") == std::string::npos);
  }
  CHECK(says(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ),
             "it is the 16th in a row, so this is taken for the new level: the next 63 steps are "
             "not judged"));
  for (int step = 0; step < 300; ++step) {
    CHECK_FALSE(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ));
  }
  CHECK(says(find_outlier(run.window, 1e5 + 4, 1, kZ), "the loss"));
}

TEST_CASE("values that come now and then become part of the window", "[train]") {
  // Every fifth step is of a source whose loss lies 20 standard deviations higher.
  Run run;
  int late = 0;
  for (int step = 0; step < 1000; ++step) {
    const bool is_high = step % 5 == 0;
    const bool skipped =
        find_outlier(run.window, run.loss() + (is_high ? 2 : 0), run.norm(), kZ).has_value();
    CHECK((is_high || !skipped));
    late += skipped && step >= 200 ? 1 : 0;
  }
  CHECK(late == 0);
}
