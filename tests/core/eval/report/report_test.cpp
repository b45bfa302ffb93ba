// results.json, sample logs and the table, with the keys of lm-evaluation-harness.
#include "core/eval/report/report.h"

#include <algorithm>
#include <sstream>

#include "core/io/output_checks.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

TaskReport two_questions() {
  const auto is_arc_easy = [](const Task& task) { return task.name == "arc_easy"; };
  Task task = *std::find_if(known_tasks().begin(), known_tasks().end(), is_arc_easy);
  const OrderedJson fields = {{"id", "q"},
                              {"question", "Quéstion?"},
                              {"choices", {{"text", {"x", "long one"}}, {"label", {"A", "B"}}}},
                              {"answerKey", "B"}};
  Question question{fields, task.prompt(fields), task.choices(fields), 1, "file line 1"};
  question.target = "1";
  Scores run;
  run.scores = {{-2.5, false, 1}, {-1.25, true, 2}, {-1.0, false, 1}, {-4.0, false, 2}};
  return make_task_report({task, {question, question}, 2376}, run);
}

RunReport report_of(TaskReport task) {
  RunReport report;
  report.model = "folder";
  report.dtype = "float32";
  report.window = 512;
  report.limit = 2;
  report.tasks.push_back(std::move(task));
  return report;
}

TEST_CASE("results.json has the harness's keys", "[eval]") {
  const OrderedJson json = results_json(report_of(two_questions()));
  // acc: right, wrong. acc_norm: -1.25 / 8 beats -2.5, -4 / 8 beats -1: both right.
  CHECK(
      json["results"]["arc_easy"].dump() ==
      R"({"name":"arc_easy","alias":"arc_easy","sample_len":2,"acc,none":0.5,"acc_stderr,none":0.5,)"
      R"("acc_norm,none":1.0,"acc_norm_stderr,none":0.0})");
  CHECK(json["versions"]["arc_easy"] == 1.0);
  CHECK(json["n-shot"]["arc_easy"] == 0);
  CHECK(json["n-samples"]["arc_easy"].dump() == R"({"original":2376,"effective":2})");
  CHECK(json["higher_is_better"]["arc_easy"]["acc_norm"] == true);
  CHECK(json["configs"]["arc_easy"]["output_type"] == "multiple_choice");
  CHECK(json["config"]["model_args"] == "pretrained=folder");
  CHECK(json["config"]["limit"] == 2);
  CHECK(json["max_length"] == 512);
  CHECK_FALSE(json["moe"].contains("router"));
}

TEST_CASE("results of a mixture have router, group size and drop rate", "[eval]") {
  TaskReport task = two_questions();
  route::CounterValues layer;
  layer.requests = 80;
  layer.dropped_requests = 20;
  layer.tokens = 80;
  layer.tokens_per_expert = {60, 0};
  task.run.counters = {layer, layer};
  RunReport report = report_of(std::move(task));
  report.router = "top1:cf=1";
  report.ep_ranks = 2;
  report.group_tokens = 8192;
  const OrderedJson json = results_json(report)["moe"];
  CHECK(json["router"] == "top1:cf=1");
  CHECK(json["group_tokens"] == 8192);
  CHECK(json["routing"]["arc_easy"]["drop_rate"] == 0.25);
  CHECK(drop_rate(report.tasks[0]) == 0.25);
}

TEST_CASE("a sample line has the harness's keys, strings and hashes", "[eval]") {
  const std::string lines = samples_jsonl(two_questions());
  const OrderedJson sample = OrderedJson::parse(lines.substr(0, lines.find('\n')));
  std::vector<std::string> keys;
  for (const auto& [key, value] : sample.items()) {
    keys.push_back(key);
  }
  CHECK(keys == std::vector<std::string>{"doc_id", "doc", "target", "arguments", "resps",
                                         "filtered_resps", "filter", "metrics", "doc_hash",
                                         "prompt_hash", "target_hash", "acc", "acc_norm"});
  CHECK(sample["target"] == "1");
  CHECK(sample["arguments"]["gen_args_1"].dump() ==
        R"({"arg_0":"Question: Quéstion?\nAnswer:","arg_1":" long one"})");
  CHECK(sample["resps"].dump() == R"([[["-2.5","False"]],[["-1.25","True"]]])");
  CHECK(sample["filtered_resps"].dump() == R"([["-2.5","False"],["-1.25","True"]])");
  CHECK(sample["acc"] == 1.0);
  // Python: hashlib.sha256(json.dumps(doc, indent=2, ensure_ascii=False).encode()).hexdigest(), and
  // the hashes of the prompt and of "1".
  CHECK(sample["doc_hash"] == "03053b88929ff071cfb08d72a238706589f85a569eb78c9397f0cce61f31ae12");
  CHECK(sample["prompt_hash"] ==
        "891dfb5d95a1c09a30282a4d560f6d9a73297e9d410bfa2aed7eb3888c64597c");
  CHECK(sample["target_hash"] ==
        "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b");
}

TEST_CASE("results.json has groups with the harness's keys", "[eval]") {
  RunReport report = report_of(two_questions());
  Group group{"g", {"arc_easy"}, "", "acc", "2", "short"};
  report.groups = {{group, {0.5, 0.25}, 2}};
  const OrderedJson json = results_json(report);
  CHECK(json["groups"]["g"].dump() ==
        R"({"alias":"short","name":"g","sample_len":2,"acc,none":0.5,"acc_stderr,none":0.25,)"
        R"("sample_count":{"acc,none":2}})");
  CHECK(json["results"]["g"] == json["groups"]["g"]);
  CHECK(json["versions"]["g"] == "2");
  CHECK(json["group_subtasks"]["g"].dump() == R"(["arc_easy"])");
  CHECK(results_table(report).find("(g)             2         2  acc       0.5000  0.2500") !=
        std::string::npos);
}

TEST_CASE("generated answers are logged once per filter", "[eval]") {
  Task task;
  for (const auto& known : known_tasks()) {
    task = known.name == "bbh_zeroshot_navigate" ? known : task;
  }
  Question question{{{"input", "Go?"}, {"target", "Yes"}}, "Q: Go?\nA:", {}, 0, "file"};
  question.target = "Yes";
  const TaskReport report = make_generated_report({task, {question}, 250}, {" Yes, you do"});
  CHECK(report.metrics.at("exact_match,strict-match").value == 0.0);
  CHECK(report.metrics.at("exact_match,flexible-extract").value == 1.0);
  std::istringstream lines(samples_jsonl(report));
  std::string strict, flexible;
  std::getline(lines, strict);
  std::getline(lines, flexible);
  const OrderedJson sample = OrderedJson::parse(flexible);
  CHECK(OrderedJson::parse(strict)["filtered_resps"].dump() == R"([" Yes, you do"])");
  CHECK(sample["filter"] == "flexible-extract");
  CHECK(sample["resps"].dump() == R"([[" Yes, you do"]])");
  CHECK(sample["filtered_resps"].dump() == R"(["Yes"])");
  CHECK(sample["metrics"].dump() == R"(["exact_match"])");
  CHECK(sample["exact_match"] == 1.0);
  CHECK(sample["arguments"].dump() ==
        R"({"gen_args_0":{"arg_0":"Q: Go?\nA:","arg_1":{"until":["</s>","Q:","<|im_end|>"],)"
        R"("do_sample":false,"temperature":0.0}}})");
  const OrderedJson results = results_json(report_of(report))["results"]["bbh_zeroshot_navigate"];
  CHECK(results["exact_match,flexible-extract"] == 1.0);
  CHECK(results["exact_match_stderr,strict-match"] == "N/A");
}

TEST_CASE("the table has a row per metric with values to four digits", "[eval]") {
  CHECK(results_table(report_of(two_questions())) ==
        "Task      Version  Shots  n  Metric     Value  Stderr\n"
        "arc_easy      1.0      0  2  acc       0.5000  0.5000\n"
        "arc_easy      1.0      0  2  acc_norm  1.0000  0.0000\n");
}

TEST_CASE("a report replaces files only with force, and leaves no partial file", "[eval]") {
  const TempDir folder;
  const auto out = folder / "out";
  const RunReport report = report_of(two_questions());
  const auto files = report_files(out, {report.tasks[0].loaded});
  io::check_output(files, false);
  write_report(report, out);
  CHECK(OrderedJson::parse(test::read_file(out / "results.json")) == results_json(report));
  CHECK(test::read_file(out / "samples_arc_easy.jsonl") == samples_jsonl(report.tasks[0]));
  CHECK(std::distance(std::filesystem::directory_iterator(out), {}) == 3);  // nothing partial
  CHECK(test::user_error_of([&] {
          io::check_output(files, false);
        }).starts_with((out / "results.json").string()));
  io::check_output(files, true);
  write_report(report, out);
  CHECK(std::distance(std::filesystem::directory_iterator(out), {}) == 3);
}

}  // namespace
}  // namespace moe::eval
