// Downsampled curves, and the stages of ReLU training.

#include "core/train/observe/curves.h"

#include <algorithm>
#include <cmath>

#include "core/train/observe/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

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

namespace {

// Reference (core/route/README.md): s2 is the first step with S >= S*, s1 the last step before s2
// with S <= S_0 + 0.05; 0 if there is none.
std::pair<int64_t, int64_t> ends_by_definition(const std::vector<double>& sparsity, double target) {
  int64_t second = 0, first = 0;
  for (size_t i = 0; i < sparsity.size() && second == 0; ++i) {
    second = sparsity[i] >= target ? static_cast<int64_t>(i) + 1 : 0;
  }
  const size_t before = second == 0 ? sparsity.size() : static_cast<size_t>(second) - 1;
  for (size_t i = 0; i < before; ++i) {
    first = sparsity[i] <= sparsity[0] + 0.05 ? static_cast<int64_t>(i) + 1 : first;
  }
  return {first, second};
}

ReluStages after(const std::vector<double>& sparsity, double target) {
  ReluStages stages;
  for (size_t i = 0; i < sparsity.size(); ++i) {
    stages.add(static_cast<int64_t>(i) + 1, sparsity[i], target);
  }
  return stages;
}

OrderedJson relu_line(int64_t step, double sparsity) {
  return {{"step", step}, {"loss", 2.0}, {"sparsity", sparsity}, {"target_sparsity", 0.75}};
}

Json lines_of(const std::filesystem::path& file) {
  Json lines = Json::array();
  std::istringstream in(read_file(file));
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

}  // namespace

TEST_CASE("stages of a ReLU run end by their definition", "[train]") {
  const std::vector<std::vector<double>> runs = {
      {0.5, 0.52, 0.54, 0.6, 0.549, 0.7, 0.76, 0.5, 0.8},  // falls back twice
      {0.5, 0.5, 0.5},                                     // stays in the first stage
      {0.5, 0.6, 0.7},                                     // stays in the second
      {0.8, 0.7, 0.74},                                    // sparse from the first step
      {0.74, 0.75},                                        // equality
  };
  for (const auto& run : runs) {
    CAPTURE(run);
    const ReluStages stages = after(run, 0.75);
    const auto [first, second] = ends_by_definition(run, 0.75);
    CHECK(stages.dense_end == first);
    CHECK(stages.sparsifying_end.value_or(0) == second);
    const ReluStages again = ReluStages::from_json(Json(stages.to_json()), "test");
    CHECK(again.to_json() == stages.to_json());
  }
  CHECK(after(runs[0], 0.75).dense_end == 5);
  CHECK(after(runs[0], 0.75).sparsifying_end == 7);
  CHECK_FALSE(ReluStages().first_sparsity.has_value());
  CHECK(ReluStages::from_json(Json(ReluStages().to_json()), "test").to_json().is_null());
}

TEST_CASE("the log has the ends of the stages once, also of an interrupted run", "[train]") {
  const std::vector<double> sparsity = {0.5, 0.54, 0.6, 0.7, 0.76, 0.74, 0.77};
  const auto write_log = [&](int64_t interrupted_after) {
    const TempDir dir;
    const RunFolder folder{dir / "run", dir / "model", false};
    std::filesystem::create_directories(folder.checkpoint(interrupted_after));
    std::vector<std::string> notes;
    std::optional<MetricsLog> log;
    log.emplace(folder, 0, std::filesystem::path(), notes);
    for (int64_t step = 1; step <= std::ssize(sparsity); ++step) {
      log->append(relu_line(step, sparsity[static_cast<size_t>(step - 1)]));
      if (step == interrupted_after) {
        write_log_state(log->state(), folder.checkpoint(step));
        log.emplace(folder, step, folder.checkpoint(step), notes);
      }
    }
    return lines_of(folder.metrics());
  };
  const Json whole = write_log(100);
  for (const int64_t after : {1, 3, 4, 5}) {
    CAPTURE(after);
    CHECK(write_log(after) == whole);
  }
  REQUIRE(whole.size() == sparsity.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i].contains("sparsifying_stage_end") == (i == 4));
  }
  CHECK(whole[4]["dense_stage_end"] == 2);
  CHECK(whole[4]["sparsifying_stage_end"] == 5);
}
