// moe report: pages of runs and of JSON files. moe train with evaluations, which the page shows.

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

Args training(const TempDir& dir, const Args& flags) {
  return joined({"train", tiny("model"), "-o", dir / "run", "--data", tiny("instruct.jsonl"),
                 "--seq-len", "64", "--micro-batch", "2", "--threads", "1"},
                flags);
}

}  // namespace

TEST_CASE("moe report writes a page from a JSON file") {
  const TempDir dir;
  const std::string page = dir / "page.json";
  write_file(dir / "page.json",
             R"({"title": "two <runs>", "x": {"label": "step"}, "sections": [{"id": "a",
             "title": "curves", "panels": [{"kind": "lines", "title": "loss", "series":
             [{"name": "one", "x": [1, 2], "y": [3, 2.5], "low": [2, 2], "high": [4, 3]}]}]}]})");
  CHECK(succeed({"report", page}).out == (dir / "page.html").string() + "\n");
  CHECK(says(read_file(dir / "page.html"), "two &lt;runs&gt;"));
  succeed({"report", page});  // overwrites a page written by moe
  write_file(dir / "page.html", "<h1>mine</h1>");
  check_refused({"report", page}, (dir / "page.html").string() + ": is not a page that moe wrote");
  CHECK(read_file(dir / "page.html") == "<h1>mine</h1>");
  succeed({"report", page, "--force"});

  write_file(dir / "page.json", R"({"title": "t", "sections": [{"panels": [{"kind": 3}]}]})");
  check_refused({"report", page, "-o", dir / "other.html"}, "page.json: not the JSON of a page");
  CHECK(!fs::exists(dir / "other.html"));
  CHECK(run_moe({"report", page, "-o", page, "--force"}).exit_code == 2);
}

TEST_CASE("moe train evaluates between steps, and its settings.toml repeats the run") {
  const TempDir dir;
  const auto result =
      succeed(training(dir, {"--steps", "2", "--eval-data", tiny("instruct.jsonl"), "--eval-rows",
                             "5", "--eval-tasks", tiny("quiz.jsonl"), "--eval-limit", "8"}));
  check_contains(result.err,
                 {"target tokens in 5 of ", "before the first step, every step and at the end",
                  "step 0  held-out loss ", "step 2  held-out loss ", "  quiz "});
  CHECK(result.err.find('\r') == std::string::npos);
  const std::string metrics = read_file(dir / "run/metrics.jsonl");
  const Json line = parse_json(metrics.substr(0, metrics.find('\n')), "line");
  CHECK(line["step"] == 0);
  CHECK(line["tasks"]["quiz"].contains("acc_stderr"));
  CHECK(succeed({"train", "--config", dir / "run/settings.toml", "-o", dir / "again", "--quiet"})
            .err.empty());
  for (const std::string file : {"samples.jsonl", "final/model.safetensors"}) {
    CHECK(read_file(dir / "again" / file) == read_file(dir / "run" / file));
  }

  // The page of a finished run, then of a killed run.
  CHECK(says(read_file(dir / "run/report.html"), "<h1>run</h1>"));
  fs::remove(dir / "run/report.html");
  fs::remove_all(dir / "run/final");
  write_file(dir / "run/metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  CHECK(succeed({"report", dir / "run"}).out == (dir / "run/report.html").string() + "\n");
  check_contains(read_file(dir / "run/report.html"), {"<small>of 2</small>", "not finished"});
}

TEST_CASE("an evaluation between steps prints the metric of a task without accuracy") {
  const TempDir dir;
  write_file(dir / "words.jsonl", "{\"q\": \"The\", \"a\": \" number\"}\n");
  write_file(dir / "words.toml",
             "data = \"words.jsonl\"\noutput_type = \"loglikelihood\"\ndoc_to_text = \"{{q}}\"\n"
             "doc_to_target = \"{{a}}\"\nmetric_list = [\"perplexity\"]\n");
  const auto run = succeed(training(dir, {"--steps", "1", "--eval-tasks", dir / "words.toml"}));
  check_contains(run.err, {"step 0  words perplexity ", "step 1  words perplexity "});
}

TEST_CASE("moe report -o writes one page for several runs, and overwrites it only with --force") {
  const TempDir dir;
  for (const std::string name : {"first", "second"}) {
    write_file(dir / name / "metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  }
  const std::string first = dir / "first", second = dir / "second", page = dir / "page.html";
  const Args both = {"report", first, second, "-o", page};
  CHECK(succeed(both).out == page + "\n");
  CHECK(says(read_file(page), "<h1>first, second</h1>"));
  CHECK_FALSE(fs::exists(dir / "first/report.html"));
  check_refused(both, "page.html: exists already");
  succeed({"report", first, "-o", page, "--force"});
  CHECK(says(read_file(page), "2.5000"));
  check_refused({"report", first, second}, "-o is required with several runs");
  check_refused({"report", first, first + "/.", "-o", page, "--force"}, "given twice");
}

TEST_CASE("moe report refuses a folder without a run, and moe train an invalid evaluation") {
  const TempDir dir;
  check_refused({"report", dir / "none"}, "metrics.jsonl: no such file");
  write_file(dir / "empty/metrics.jsonl", "");
  check_refused({"report", dir / "empty"}, "no step of the run is finished yet");
  const Args evaluation = {"--eval-tasks", "hellaswug", "--eval-data-dir", tiny("")};
  check_refused(training(dir, evaluation), "hellaswag");
  CHECK_FALSE(fs::exists(dir / "run"));
}
