#include "core/train/observe/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/train/observe/curves.h"
#include "core/train/observe/metrics.h"
#include "core/train/observe/report.h"
#include "tests/support/page.h"
#include "tests/support/training_rows.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

Json step_line(int64_t step, int64_t first_load = 6) {
  return {{"step", step},
          {"loss", 3.0 - 0.1 * static_cast<double>(step)},
          {"total_tokens", 100 * step},
          {"seconds", 0.5},
          {"skipped_steps", step < 3 ? 0 : 1},
          {"layers", Json::array({{{"layer", 2}, {"load", {first_load, 2, 0}}}})}};
}

History dense_run(int64_t steps) {
  History history;
  for (int64_t step = 1; step <= steps; ++step) {
    const auto at = static_cast<double>(step);
    history.add({{"step", step},
                 {"loss", 2 + 8 / at + 0.1 * std::sin(at)},
                 {"grad_norm", 1 + 1 / at},
                 {"lr", 1e-5},
                 {"tokens_per_second", 1000 + 10 * std::sin(at)}},
                "metrics");
  }
  return history;
}

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

}  // namespace

TEST_CASE("a history accumulates the lines of metrics.jsonl") {
  History history;
  history.add({{"step", 0},
               {"held_out_loss", 4.0},
               {"tasks", {{"piqa", {{"acc", 0.5}, {"acc_stderr", 0.1}}}}},
               {"evaluation_seconds", 2.0}},
              "metrics");
  for (int64_t step = 1; step <= 4; ++step) {
    history.add(step_line(step), "metrics");
  }
  CHECK(history.steps == 4);
  CHECK(history.total_tokens == 400);
  CHECK(history.seconds == 4.0);
  CHECK(history.skipped_count == 1);
  CHECK(history.skipped == std::vector<int64_t>{3});
  CHECK(history.curves().at("loss").points().size() == 4);
  CHECK(history.curves().at("tasks/piqa/acc").last.value == 0.5);
  CHECK(history.curves().at("held_out_loss").first.step == 0);
  REQUIRE(history.loads().columns().size() == 4);
  const LayerLoad& load = history.loads().columns()[0].loads.at(0);
  CHECK(load.layer == 2);
  CHECK(relative_load(load, 0) == 6.0 / 8 * 3);
  CHECK(relative_load(load, 2) == 0);
}

TEST_CASE("a step without targets has no point in the loss curve and is counted") {
  History history;
  history.add(Json{{"step", 1}, {"loss", 2.5}, {"target_tokens", 7}, {"lr", 1e-3}}, "line 1");
  history.add(Json{{"step", 2}, {"loss", 0}, {"target_tokens", 0}, {"lr", 1e-3}}, "line 2");
  CHECK(history.curves().at("loss").last.step == 1);
  CHECK(history.curves().at("loss").last.value == 2.5);
  CHECK(history.curves().at("lr").last.step == 2);
  history.add(
      Json{{"step", 3}, {"loss", nullptr}, {"target_tokens", 0}, {"steps_without_targets", 2}},
      "line 3");
  CHECK(history.curves().at("loss").last.step == 1);
  CHECK(history.steps_without_targets == 2);
}

TEST_CASE("a layer with nearly idle experts is news once, until all have a fifth of their share") {
  CollapseWatch watch;
  int64_t step = 0, news = 0;
  const auto feed = [&](const std::vector<int64_t>& rows, int64_t steps) {
    for (const int64_t last = step + steps; step < last;) {
      watch.add(++step, {{0, {25, 25, 25, 25}}, {2, rows}});
      news += watch.news().empty() ? 0 : 1;
    }
    return watch.state();
  };
  CHECK(feed({94, 2, 0, 4}, 19).empty());
  CHECK_THAT(feed({94, 2, 0, 4}, 1),
             contains_text("layer 2: 2 of 4 (1, 2), while expert 0 has 94 %") &&
                 contains_text("less than 2.5 %") && !contains_text("layer 0"));
  CHECK(news == 1);
  feed({94, 2, 0, 4}, 30);
  const Json saved(watch.to_json());
  watch = CollapseWatch::from_json(saved, "history");  // in a window
  CHECK(Json(watch.to_json()) == saved);
  CHECK(feed({88, 4, 4, 4}, 30).empty());  // neither idle nor recovered
  CHECK_THAT(feed({98, 0, 1, 1}, 20), contains_text("3 of 4 (1, 2, 3)"));
  CHECK(news == 1);
  CHECK(feed({85, 5, 5, 5}, 20).empty());
  CHECK(feed({91, 3, 3, 3}, 20).empty());
  CHECK_FALSE(feed({98, 0, 1, 1}, 20).empty());
  CHECK(news == 2);
  CollapseWatch few;  // too few rows to tell from chance
  for (int64_t i = 1; i <= CollapseWatch::kSteps; ++i) {
    few.add(i, {{0, {2, 1, 0, 0}}});
  }
  CHECK(few.state().empty());
}

TEST_CASE("a load map of many steps merges them into few columns and keeps the sums") {
  LoadMap map;
  constexpr int64_t kSteps = 5000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    map.add(step, {{0, {step, 1}}});
  }
  CHECK(map.columns().size() <= 160);
  CHECK(map.columns().size() >= 40);
  int64_t first = 0, second = 0, next = 1;
  for (const auto& column : map.columns()) {
    CHECK(column.begin == next);
    next = column.end + 1;
    first += column.loads[0].rows[0];
    second += column.loads[0].rows[1];
  }
  CHECK(first == kSteps * (kSteps + 1) / 2);
  CHECK(second == kSteps);
}

TEST_CASE("an incomplete last line of metrics.jsonl is ignored") {
  const TempDir dir;
  const std::string whole = step_line(1).dump() + "\n" + step_line(2).dump() + "\n";
  write_file(dir / "metrics.jsonl", whole + step_line(3).dump());  // no newline: not finished
  CHECK(read_history(dir.path()).steps == 2);
  write_file(dir / "metrics.jsonl", whole + R"({"step": 3, "lo)");
  CHECK(read_history(dir.path()).steps == 2);
  write_file(dir / "metrics.jsonl", "");
  CHECK(read_history(dir.path()).curves().empty());
}

TEST_CASE("an invalid metrics.jsonl is refused with its line") {
  const TempDir dir;
  const std::string good = step_line(1).dump() + "\n";
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {good + "{broken\n", "metrics.jsonl line 2"},
           {"[1]\n", "metrics.jsonl line 1"},
           {"{\"loss\": 1}\n", "step"},
           {good + good, "step 1 cannot follow step 1"},
           {"{\"step\": -1}\n", "step -1"}}) {
    write_file(dir / "metrics.jsonl", text);
    CHECK_THAT(user_error_of([&] { read_history(dir.path()); }), contains_text(fact));
  }
  CHECK_FALSE(user_error_of([&] { read_history(dir / "none"); }).empty());
}

TEST_CASE("values of wrong types are ignored") {
  History history;
  history.add(
      {{"step", 1},
       {"loss", "low"},
       {"lr", nullptr},
       {"skipped_steps", nullptr},
       {"tasks", {{"piqa", 3}}},
       {"layers", Json::array({1, {{"layer", 0}}, {{"layer", 1}, {"load", {-5, "x", 1e30}}}})}},
      "metrics");
  CHECK(history.curves().count("loss") == 0);
  CHECK(history.curves().count("lr") == 0);
  CHECK(history.skipped_count == 0);
  REQUIRE(history.loads().columns().size() == 1);
  CHECK((history.loads().columns()[0].loads[0].rows == std::vector<int64_t>{0, 0, 0}));
}

TEST_CASE("a history read from its JSON continues like the original") {
  const auto sample = [](int64_t step) {
    return TextSample{step, step % 3 == 0 ? "one" : "other", fmt::format("after {}", step)};
  };
  const auto feed = [&](History& history, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      history.add(step_line(step, step % 5), "metrics");
      history.add(sample(step));
    }
  };
  const int64_t stop = GENERATE(0, 1, 7, 160, 161, 1000, 1001, 2500);
  History whole, begun;
  feed(whole, 1, 3000);
  feed(begun, 1, stop);
  const std::string text = begun.to_json().dump();
  History history = History::from_json(parse_json(text, "text"), "text");
  CHECK(history.to_json().dump() == text);
  feed(history, stop + 1, 3000);
  CHECK(history.to_json().dump() == whole.to_json().dump());
  CHECK_THROWS_AS(history.add(step_line(3000), "metrics"), UserError);
}

// Downsampled curves, and the stages of ReLU training.

TEST_CASE("a curve of up to 1000 points is kept as it is") {
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

TEST_CASE("a longer curve keeps at most 1000 points, with its extremes") {
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
  CHECK((curve.min.step == 901 && curve.max.step == 777));
  CHECK((curve.first.step == 1 && curve.last.step == steps));
  CHECK((points.front().step == 1 && points.back().step == steps));
}

TEST_CASE("points(n) returns at most n points with the first, the last and the extremes") {
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

TEST_CASE("stages of a ReLU run end by their definition") {
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

TEST_CASE("the log has the ends of the stages once, also of an interrupted run") {
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
    return json_lines(read_file(folder.metrics()));
  };
  const std::vector<Json> whole = write_log(100);
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

TEST_CASE("the report of a dense run has the panels of its curves only") {
  const TempDir dir;
  const Json data = drawn_data(report_page(dir.path(), dense_run(50)));
  CHECK((panel_titles(data) ==
         std::vector<std::string>{"Loss", "Learning rate", "Gradient norm", "Speed"}));
  CHECK(data["sections"].size() == 3);  // no load maps
  CHECK(data["sections"][0]["title"] == "");
  CHECK(data["sections"][1]["title"] == "Optimizer");
  const Json loss = panel_of(data, "Loss");
  CHECK(loss["series"][0]["y"].size() == 50);
  CHECK(loss["series"][0]["smooth"]["y"].size() == 50);
}

TEST_CASE("the clip of the settings is drawn unless it is 0") {
  const TempDir dir;
  write_file(dir / "settings.toml", "[train]\nsteps = 90\nclip = 0.5\n");
  const std::string page = report_page(dir.path(), dense_run(3));
  CHECK(panel_of(drawn_data(page), "Gradient norm")["rule"]["value"] == 0.5);
  CHECK(page.find("of 90") != std::string::npos);
  write_file(dir / "settings.toml", "[train]\nclip = 0\n");
  CHECK_FALSE(panel_of(drawn_data(report_page(dir.path(), dense_run(3))), "Gradient norm")
                  .contains("rule"));
}

TEST_CASE("only panels of losses start after the warm-up and have a log scale") {
  const TempDir dir;
  History history = dense_run(20);
  history.add({{"step", 21}, {"load_balance_loss", 1.5}, {"auxiliary_loss", 0.015}}, "metrics");
  const auto data = [&](const std::string& settings) {
    write_file(dir / "settings.toml", "[train]\n" + settings);
    return drawn_data(report_page(dir.path(), history));
  };
  const Json warm = data("warmup = 7\n"), cold = data("warmup = 0\n");
  for (const std::string& title : panel_titles(warm)) {
    CAPTURE(title);
    const bool is_loss =
        title == "Loss" || title == "Load-balance loss" || title == "Auxiliary losses";
    CHECK(panel_of(warm, title)["y"].contains("log") == is_loss);
    CHECK(panel_of(warm, title).contains("start") == is_loss);
    CHECK_FALSE(panel_of(cold, title).contains("start"));
  }
  CHECK(panel_of(warm, "Loss")["y"]["log"] == false);
  CHECK(panel_of(warm, "Loss")["start"] == Json{{"name", "warm-up"}, {"x", 7}});
  CHECK(panel_of(warm, "Loss")["series"][0]["x"][0] == 1);  // the warm-up can be shown
}

TEST_CASE("text of a run is escaped in the report") {
  const TempDir dir;
  const std::string hostile =
      "</script></pre><script>alert(1)</script>{{data}}<img src=x onerror=alert(2)>";
  write_file(dir / "settings.toml", "[train]\nmodel = \"" + hostile + "\"\n");
  write_file(dir / "starts.jsonl",
             OrderedJson{{"step", 0}, {"machine", hostile}, {"notes", {hostile, 3}}}.dump() + "\n");
  History history = dense_run(2);
  history.add({0, hostile, hostile});
  history.add({{"step", 3}, {"tasks", {{hostile, {{"acc", 0.5}}}}}}, "metrics");
  const std::string page = report_page(dir.path(), history);
  CHECK(count_of(page, "alert(1)") >= 6);  // as text
  CHECK(count_of(page, "<script>alert") == 0);
  CHECK(count_of(page, "<img") == 0);
  CHECK(count_of(page, "<script") == 2);  // data and code of the page
  CHECK(count_of(page, "</script>") == 2);
  CHECK(panel_of(drawn_data(page), "Accuracy")["series"][0]["name"] == hostile);
}

TEST_CASE("a comparison of runs has a panel per curve, final values and different settings") {
  const TempDir dir;
  History mixture = dense_run(30);
  mixture.add({{"step", 31}, {"experts_per_token", 2}, {"held_out_loss", 2.25}}, "metrics");
  History stopped = dense_run(25);
  stopped.add({{"step", 26}, {"held_out_loss", 2.5}, {"tasks", {{"quiz", {{"acc", 0.75}}}}}},
              "metrics");
  write_file(dir / "a/run/settings.toml", "[train]\nsteps = 31\nwarmup = 3\nlr = 0.5\n");
  write_file(dir / "b/run/settings.toml", "[train]\nsteps = 40\nwarmup = 7\nlr = 0.5\nseed = 4\n");
  write_file(dir / "third/settings.toml", "no TOML at all");
  const std::string page = comparison_page(
      {{dir / "a/run", mixture}, {dir / "b/run", stopped}, {dir / "third", dense_run(2)}});
  const Json data = drawn_data(page);
  CHECK((panel_titles(data) ==
         std::vector<std::string>{"Loss, training", "Loss, held out", "Accuracy, quiz",
                                  "Learning rate", "Gradient norm", "Speed", "Experts per token"}));
  const Json loss = panel_of(data, "Loss, training");
  REQUIRE(loss["series"].size() == 3);
  CHECK(loss["series"][0]["name"] == (dir / "a/run").string());  // two folders have the name run
  CHECK(loss["series"][2]["name"] == "third");
  CHECK(loss["series"][0]["smooth"]["y"].size() == 30);
  CHECK(loss["series"][1]["smooth"]["y"].size() == 25);
  CHECK_FALSE(loss["series"][2].contains("smooth"));  // too short
  CHECK(loss["start"]["x"] == 7);                     // the longest warm-up
  const Json held_out = panel_of(data, "Loss, held out");
  REQUIRE(held_out["series"].size() == 2);
  CHECK(held_out["series"][1]["y"][0] == 2.5);
  CHECK(panel_of(data, "Accuracy, quiz")["series"].size() == 1);
  const std::string ends = page.substr(page.find("How they ended"));
  CHECK(ends.find("<td>2.25</td>") < ends.find("<td>2.5</td>"));
  CHECK(ends.find("<td>75</td>") != std::string::npos);
  const std::string settings = page.substr(page.find("Settings that differ"));
  CHECK(settings.find("steps") != std::string::npos);
  CHECK(settings.find("<td>31</td>") != std::string::npos);
  CHECK(settings.find("seed") != std::string::npos);
}

TEST_CASE("the report of a long run with many experts, or tasks and starts, is smaller than 2 MB") {
  const TempDir dir;
  const auto make_page = [&](int64_t steps, bool has_experts) {
    Json layers = Json::array();
    for (int64_t layer = 0; layer < 32; ++layer) {
      layers.push_back({{"layer", layer}, {"load", std::vector<int64_t>(64, 123)}});
    }
    History history;
    for (int64_t step = 1; step <= steps; ++step) {
      const double value = 1.2345678 + std::sin(static_cast<double>(step));
      Json line = {{"step", step}};
      for (const char* name : {"loss", "grad_norm", "lr", "tokens_per_second"}) {
        line[name] = value;
      }
      if (has_experts && step % 20 == 0) {
        line["layers"] = layers;
      }
      for (int task = 0; !has_experts && task < 300; ++task) {
        line["tasks"][fmt::format("task_of_a_long_name_{}", task)]["acc"] = value / 4 + 0.3;
      }
      history.add(line, "metrics");
    }
    const std::string page = report_page(dir.path(), history);
    CHECK(page.size() < 2'000'000);
    return page;
  };
  const Json data = drawn_data(make_page(20'000, true));
  CHECK(panel_titles(data).size() == 4 + 32);  // a panel per curve and a map per layer
  const Json& map = data["sections"].back()["panels"][31];
  CHECK(map["title"] == "Layer 31");
  CHECK(map["values"].size() == 64 * data["sections"].back()["x"]["ranges"].size());
  CHECK(map["values"][0] == 100);

  std::string starts;
  for (int64_t step = 0; step < 5000; ++step) {
    starts += OrderedJson{{"step", step}, {"time", "2026-01-31 12:05 UTC"}}.dump() + "\n";
  }
  write_file(dir / "starts.jsonl", starts);
  const std::string page = make_page(1500, false);
  const Json tasks = panel_of(drawn_data(page), "Accuracy")["series"];
  CHECK(tasks.size() == 300);
  CHECK(tasks[299]["y"].size() >= 50);
  CHECK(count_of(page, "Resumed after step") == 19);
  CHECK(page.find("Resumed 4980 more times") != std::string::npos);
  CHECK(page.find("Resumed after step 4,999") != std::string::npos);
}

TEST_CASE("smoothing keeps a straight line and reduces noise") {
  std::vector<Point> straight, noisy;
  for (int64_t step = 0; step < 300; ++step) {
    straight.push_back({step, static_cast<double>(step)});
    noisy.push_back({step, step % 2 == 0 ? 1.0 : -1.0});
  }
  const auto line = smoothed(straight), calm = smoothed(noisy);
  REQUIRE((line.size() == 300 && calm.size() == 300));
  for (size_t i = 0; i < 300; ++i) {
    CHECK(line[i].value == Approx(straight[i].value));  // weights are symmetric
  }
  // Weights 1..11..1 of a window of 21: the sum of +1 and -1 is 11 - 10 of 121.
  CHECK(std::abs(calm[150].value) == Approx(1.0 / 121));
  CHECK(smoothed({{1, 1.0}, {2, 5.0}}).empty());
}

TEST_CASE("invalid lines of samples.jsonl and starts.jsonl are left out") {
  const TempDir dir;
  write_file(
      dir / "samples.jsonl",
      OrderedJson{{"step", 0}, {"prompt", "first"}, {"text", "whole"}}.dump() + "\n{\"step\": 1");
  write_file(dir / "starts.jsonl", "[]\n");
  write_file(dir / "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  const std::string page = report_page(dir.path(), read_history(dir.path()));
  CHECK(page.find("whole") != std::string::npos);
  CHECK(page.find("id=\"about\"") == std::string::npos);
}
