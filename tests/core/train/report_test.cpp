#include "core/train/observe/report.h"

#include <fmt/format.h>

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/page.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

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

}  // namespace

TEST_CASE("the report of a dense run has the panels of its curves only", "[train]") {
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

TEST_CASE("the clip of the settings is drawn unless it is 0", "[train]") {
  const TempDir dir;
  write_file(dir / "settings.toml", "[train]\nsteps = 90\nclip = 0.5\n");
  const std::string page = report_page(dir.path(), dense_run(3));
  CHECK(panel_of(drawn_data(page), "Gradient norm")["rule"]["value"] == 0.5);
  CHECK(page.find("of 90") != std::string::npos);
  write_file(dir / "settings.toml", "[train]\nclip = 0\n");
  CHECK_FALSE(panel_of(drawn_data(report_page(dir.path(), dense_run(3))), "Gradient norm")
                  .contains("rule"));
}

TEST_CASE("only panels of losses start after the warm-up and have a log scale", "[train]") {
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

TEST_CASE("text of a run is escaped in the report", "[train]") {
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

TEST_CASE("a comparison of runs has a panel per curve, final values and different settings",
          "[train]") {
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

TEST_CASE("the report of a long run with many experts, or tasks and starts, is smaller than 2 MB",
          "[train]") {
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

TEST_CASE("smoothing keeps a straight line and reduces noise", "[train]") {
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

TEST_CASE("invalid lines of samples.jsonl and starts.jsonl are left out", "[train]") {
  const TempDir dir;
  write_file(
      dir / "samples.jsonl",
      OrderedJson{{"step", 0}, {"prompt", "first"}, {"text", "whole"}}.dump() + "\n{\"step\": 1");
  write_file(dir / "starts.jsonl", "[]\n");
  write_file(dir / "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  write_report(dir.path(), read_history(dir.path()), dir / "page.html");
  const std::string page = read_file(dir / "page.html");
  CHECK(page.find("whole") != std::string::npos);
  CHECK(page.find("id=\"about\"") == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(dir / "page.html.new"));
}
