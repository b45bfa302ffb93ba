// Stages of ReLU training: their ends by the definition, in metrics.jsonl, across a checkpoint and
// on the report.

#include "core/train/observe/curves.h"
#include "core/train/observe/metrics.h"
#include "core/train/observe/report.h"
#include "tests/support/page.h"
#include "tests/support/train_world.h"

using namespace moe;
using namespace moe::train;
using moe::test::count_of;
using moe::test::read_file;
using moe::test::TempDir;
using moe::test::TrainWorld;

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
    CHECK(stages.dense_end() == first);
    CHECK(stages.sparsifying_end().value_or(0) == second);
    const ReluStages again = ReluStages::from_json(Json(stages.to_json()), "test");
    CHECK(again.to_json() == stages.to_json());
  }
  CHECK(after(runs[0], 0.75).dense_end() == 5);
  CHECK(after(runs[0], 0.75).sparsifying_end() == 7);
  CHECK_FALSE(ReluStages().has_begun());
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

TEST_CASE("the report of a ReLU run has the step at which it became sparse", "[train]") {
  const TempDir dir;
  const auto make_page = [&](const std::vector<double>& sparsity) {
    History history;
    for (size_t i = 0; i < sparsity.size(); ++i) {
      history.add(Json(relu_line(static_cast<int64_t>(i) + 1, sparsity[i])), "metrics");
    }
    return report_page(dir.path(), history);
  };
  const auto fact = [](const std::string& value) {
    return "<dt>Sparse since step</dt><dd>" + value + "</small></dd>";
  };
  CHECK(count_of(make_page({0.5, 0.54, 0.6, 0.76, 0.7}),
                 fact("4 <small>dense until 2; S* is 0.75")) == 1);
  CHECK(count_of(make_page({0.5, 0.54, 0.6}),
                 fact("- <small>not yet; dense until 2; S* is 0.75")) == 1);
}

TEST_CASE("a run with a ReLU router writes target sparsity and the ends of the stages", "[train]") {
  TrainWorld world("relu:k=1,lambda0=0.01,mult=1.5");
  world.settings.steps = 40;
  world.train();
  const Json lines = lines_of(world.dir / "run/metrics.jsonl");
  std::vector<double> sparsity;
  int64_t ends = 0;
  for (const auto& line : lines) {
    CHECK(line["target_sparsity"] == 0.75);
    sparsity.push_back(line["sparsity"]);
    ends += line.contains("sparsifying_stage_end");
  }
  const auto [first, second] = ends_by_definition(sparsity, 0.75);
  REQUIRE(second > 0);
  CHECK(ends == 1);
  CHECK(lines[static_cast<size_t>(second) - 1]["sparsifying_stage_end"] == second);
  CHECK(lines[static_cast<size_t>(second) - 1]["dense_stage_end"] == first);
}
