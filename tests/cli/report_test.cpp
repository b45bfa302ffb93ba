// moe report, and what moe train says of its evaluations.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using moe::test::read_file;
using moe::test::run_moe;
using moe::test::RunResult;
using moe::test::says;
using moe::test::TempDir;
using moe::test::write_file;

namespace {

std::string tiny(const std::string& name) {
  return (moe::test::source_folder() / "recipes/tiny" / name).string();
}

RunResult train(const TempDir& dir, std::vector<std::string> flags) {
  std::vector<std::string> words = {"train",
                                    tiny("model"),
                                    "-o",
                                    (dir / "run").string(),
                                    "--data",
                                    tiny("instruct.jsonl"),
                                    "--seq-len",
                                    "64",
                                    "--micro-batch",
                                    "2",
                                    "--threads",
                                    "1"};
  words.insert(words.end(), flags.begin(), flags.end());
  return run_moe(words);
}

}  // namespace

TEST_CASE("moe report draws a page that a JSON file describes", "[cli]") {
  const TempDir dir;
  const std::string page = (dir / "page.json").string();
  write_file(dir / "page.json",
             R"({"title": "two <runs>", "x": {"label": "step"}, "sections": [{"id": "a",
             "title": "curves", "panels": [{"kind": "lines", "title": "loss", "series":
             [{"name": "one", "x": [1, 2], "y": [3, 2.5], "low": [2, 2], "high": [4, 3]}]}]}]})");
  const auto drawn = run_moe({"report", page});
  CHECK(drawn.exit_code == 0);
  CHECK(drawn.out == (dir / "page.html").string() + "\n");
  CHECK(says(read_file(dir / "page.html"), "two &lt;runs&gt;"));
  CHECK(run_moe({"report", page}).exit_code == 0);  // drawn anew, as a run's is
  write_file(dir / "page.html", "<h1>mine</h1>");
  const auto theirs = run_moe({"report", page});
  CHECK(theirs.exit_code == 2);
  CHECK(says(theirs.err, (dir / "page.html").string() + ": is not a page that moe wrote"));
  CHECK(read_file(dir / "page.html") == "<h1>mine</h1>");
  CHECK(run_moe({"report", page, "--force"}).exit_code == 0);

  write_file(dir / "page.json", R"({"title": "t", "sections": [{"panels": [{"kind": 3}]}]})");
  const auto refused = run_moe({"report", page, "-o", (dir / "other.html").string()});
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, "page.json: is not the JSON of a page"));
  CHECK(!std::filesystem::exists(dir / "other.html"));
  CHECK(run_moe({"report", page, "-o", page, "--force"}).exit_code == 2);
}

TEST_CASE("moe train evaluates along the way and its settings make the same run again", "[cli]") {
  const TempDir dir;
  const auto result =
      train(dir, {"--steps", "4", "--eval-data", tiny("instruct.jsonl"), "--eval-rows", "5",
                  "--eval-tasks", tiny("quiz.jsonl"), "--eval-limit", "8"});
  REQUIRE(result.exit_code == 0);
  CHECK(says(result.err, "target tokens in 5 of "));
  CHECK(says(result.err, "before the first step, every step and at the end"));
  CHECK(says(result.err, "step 0  held-out loss "));
  CHECK(says(result.err, "step 4  held-out loss "));
  CHECK(says(result.err, "  quiz "));
  CHECK(result.err.find('\r') == std::string::npos);
  const Json line = parse_json(read_file(dir / "run/metrics.jsonl")
                                   .substr(0, read_file(dir / "run/metrics.jsonl").find('\n')),
                               "line");
  CHECK(line["step"] == 0);
  CHECK(line["tasks"]["quiz"].contains("acc_stderr"));
  const auto again = run_moe({"train", "--config", (dir / "run/settings.toml").string(), "-o",
                              (dir / "again").string(), "--quiet"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(again.err.empty());
  CHECK(read_file(dir / "again/samples.jsonl") == read_file(dir / "run/samples.jsonl"));
  CHECK(read_file(dir / "again/final/model.safetensors") ==
        read_file(dir / "run/final/model.safetensors"));
}

TEST_CASE("moe report makes the page of a run, also of one that was cut off", "[cli]") {
  const TempDir dir;
  REQUIRE(train(dir, {"--steps", "3", "--quiet"}).exit_code == 0);
  const std::string page = read_file(dir / "run/report.html");
  CHECK(says(page, "<h1>run</h1>"));
  std::filesystem::remove(dir / "run/report.html");
  std::filesystem::remove_all(dir / "run/final");
  const std::string metrics = read_file(dir / "run/metrics.jsonl");
  write_file(dir / "run/metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  const auto result = run_moe({"report", (dir / "run").string()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out == (dir / "run/report.html").string() + "\n");
  CHECK(says(read_file(dir / "run/report.html"), "2 <small>of 3</small>"));
  CHECK(says(read_file(dir / "run/report.html"), "not finished"));
}

TEST_CASE("moe report writes where -o says and replaces nothing unasked", "[cli]") {
  const TempDir dir;
  write_file(dir / "run/metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  const std::vector<std::string> words = {"report", (dir / "run").string(), "-o",
                                          (dir / "page.html").string()};
  REQUIRE(run_moe(words).exit_code == 0);
  CHECK(says(read_file(dir / "page.html"), "2.5000"));
  CHECK_FALSE(std::filesystem::exists(dir / "run/report.html"));
  const auto refused = run_moe(words);
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, "page.html: is there already; give another -o, or --force"));
  auto forced = words;
  forced.emplace_back("--force");
  CHECK(run_moe(forced).exit_code == 0);
}

TEST_CASE("moe report puts several runs on one page", "[cli]") {
  const TempDir dir;
  for (const std::string name : {"first", "second"}) {
    write_file(dir / name / "metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  }
  const std::string first = (dir / "first").string(), second = (dir / "second").string();
  const auto nowhere = run_moe({"report", first, second});
  CHECK(nowhere.exit_code == 2);
  CHECK(says(nowhere.err, "-o is required with several runs"));
  const std::string page = (dir / "page.html").string();
  const auto both = run_moe({"report", first, second, "-o", page});
  INFO(both.err);
  REQUIRE(both.exit_code == 0);
  CHECK(both.out == page + "\n");
  CHECK(says(read_file(dir / "page.html"), "<h1>first, second</h1>"));
  CHECK(run_moe({"report", first, second, "-o", page}).exit_code == 2);
  const auto twice = run_moe({"report", first, first + "/.", "-o", page, "--force"});
  CHECK(twice.exit_code == 2);
  CHECK(says(twice.err, "is given twice"));
  const auto own = run_moe({"report", first, second, "-o", second + "/metrics.jsonl", "--force"});
  CHECK(own.exit_code == 2);
  CHECK(says(read_file(dir / "second/metrics.jsonl"), "2.5"));
}

TEST_CASE("a folder without a run is refused", "[cli]") {
  const TempDir dir;
  const auto none = run_moe({"report", (dir / "none").string()});
  CHECK(none.exit_code == 2);
  CHECK(says(none.err, "metrics.jsonl: no such file; name the folder of a run of moe train"));
  write_file(dir / "empty/metrics.jsonl", "");
  const auto empty = run_moe({"report", (dir / "empty").string()});
  CHECK(empty.exit_code == 2);
  CHECK(says(empty.err, "has finished no step yet"));
}

TEST_CASE("evaluation that cannot be is refused before a run is made", "[cli]") {
  const TempDir dir;
  const auto every = train(dir, {"--eval-every", "5"});
  CHECK(every.exit_code == 2);
  CHECK(says(every.err, "--eval-every says how often to evaluate; give --eval-data FILE"));
  const auto task = train(dir, {"--eval-tasks", "hellaswug", "--eval-data-dir", tiny("")});
  CHECK(task.exit_code == 2);
  CHECK(says(task.err, "hellaswag"));
  const auto missing = train(dir, {"--eval-data", (dir / "none.jsonl").string()});
  CHECK(missing.exit_code == 2);
  CHECK(says(missing.err, "none.jsonl"));
  CHECK_FALSE(std::filesystem::exists(dir / "run"));
}
