#include <algorithm>
#include <cmath>

#include "core/train/observe/curves.h"
#include "tests/support/catch.h"

using namespace moe::train;

TEST_CASE("a curve of up to 1000 points is kept as it is", "[train]") {
  Downsampled curve;
  for (int64_t step = 1; step <= 1000; ++step) {
    curve.add(step, std::sin(0.1 * static_cast<double>(step)));
  }
  const auto points = curve.points();
  REQUIRE(points.size() == 1000);
  CHECK_FALSE(curve.is_downsampled());
  for (int64_t step = 1; step <= 1000; ++step) {
    const Point& point = points[static_cast<size_t>(step - 1)];
    CHECK(point.step == step);
    CHECK(point.value == std::sin(0.1 * static_cast<double>(step)));
  }
}

TEST_CASE("a longer curve keeps at most 1000 points, with its extremes", "[train]") {
  const auto steps = GENERATE(int64_t{1001}, int64_t{1999}, int64_t{1'000'003});
  Downsampled curve;
  double sum = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const double value = step == 777 ? 50 : step == 901 ? -50 : 1.0 / static_cast<double>(step);
    curve.add(step, value);
    sum += value;
  }
  const auto points = curve.points();
  CHECK(points.size() <= Downsampled::kMaxPoints);
  CHECK(points.size() > Downsampled::kMaxPoints / 4);
  CHECK(std::is_sorted(points.begin(), points.end(),
                       [](Point one, Point two) { return one.step < two.step; }));
  const auto has = [&](int64_t step, double value) {
    return std::any_of(points.begin(), points.end(),
                       [&](Point point) { return point.step == step && point.value == value; });
  };
  CHECK(has(777, 50));
  CHECK(has(901, -50));
  CHECK((curve.least.step == 901 && curve.largest.step == 777));
  CHECK((curve.first.step == 1 && curve.last.step == steps));
  CHECK((points.front().step == 1 && points.back().step == steps));
}

TEST_CASE("the means of a curve are those of its buckets", "[train]") {
  Downsampled curve;
  for (int64_t step = 0; step < 4096; ++step) {
    curve.add(step, static_cast<double>(step));
  }
  // The mean of a bucket of a straight line is (begin + end) / 2; its step is rounded to an
  // integer.
  for (const Point& mean : curve.means()) {
    CHECK(std::abs(mean.value - static_cast<double>(mean.step)) <= 0.5);
  }
}

TEST_CASE("steps far apart keep their points", "[train]") {
  Downsampled curve;
  for (int64_t step = 0; step <= 10'000'000; step += 100'000) {
    curve.add(step, 1);
  }
  CHECK(curve.points().size() == 101);
}

TEST_CASE("points(n) returns at most n points with the first, the last and the extremes",
          "[train]") {
  const auto steps = GENERATE(int64_t{40}, int64_t{900}, int64_t{50'000});
  Downsampled curve;
  for (int64_t step = 1; step <= steps; ++step) {
    curve.add(step, step == 30 ? 50 : std::sin(static_cast<double>(step)));
  }
  for (const size_t most : {size_t{4}, size_t{50}, size_t{300}}) {
    const auto points = curve.points(most);
    CHECK(points.size() <= most);
    CHECK((points.front().step == 1 && points.back().step == steps));
    CHECK((most == 4 || std::any_of(points.begin(), points.end(),
                                    [](Point point) { return point.value == 50; })));
  }
}
