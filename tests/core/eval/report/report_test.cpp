// results.json, sample logs and the table, with the keys of lm-evaluation-harness.

#include "core/eval/report/report.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/eval/report/compare.h"
#include "core/eval/report/task_report.h"
#include "core/eval/tasks/tasks.h"
#include "core/io/output_checks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

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

LoadedTask two_questions(const std::vector<std::string>& metrics) {
  LoadedTask loaded;
  for (const auto& name : metrics) {
    loaded.task.metrics.push_back(name == "perplexity" ? perplexity() : choice_metric(name));
  }
  for (const int64_t gold : {1, 0}) {
    Question question;
    question.choices = {"a", "b"};
    question.gold = gold;
    loaded.questions.push_back(question);
  }
  return loaded;
}

Scores scores_of(const std::vector<double>& logprobs) {
  Scores scores;
  for (const double logprob : logprobs) {
    scores.scores.push_back({logprob, false, 1});
  }
  return scores;
}

TaskReport report_of(const std::vector<double>& values) {
  TaskReport report;
  report.loaded.task.name = "t";
  report.loaded.task.metrics = {choice_metric("acc")};
  for (size_t i = 0; i < values.size(); ++i) {
    Question question;
    question.target = "1";
    report.loaded.questions.push_back(question);
  }
  report.values["acc"] = values;
  return report;
}

// Returns a callback that appends "metric mean of questions".
auto append_to(std::vector<std::string>& reports) {
  return [&reports](const std::string& metric, double mean, int64_t questions) {
    reports.push_back(fmt::format("{} {} of {}", metric, mean, questions));
  };
}

std::string log_line(int doc_id, double acc, const std::string& target = "1") {
  const OrderedJson line = {{"doc_id", doc_id},
                            {"target", target},
                            {"filter", "none"},
                            {"metrics", {"acc"}},
                            {"acc", acc}};
  return line.dump() + "\n";
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
  CHECK(OrderedJson::parse(read_file(out / "results.json")) == results_json(report));
  CHECK(read_file(out / "samples_arc_easy.jsonl") == samples_jsonl(report.tasks[0]));
  CHECK(std::distance(std::filesystem::directory_iterator(out), {}) == 3);  // nothing partial
  CHECK_THAT(user_error_of([&] { io::check_output(files, false); }),
             contains_text((out / "results.json").string()));
  io::check_output(files, true);
  write_report(report, out);
  CHECK(std::distance(std::filesystem::directory_iterator(out), {}) == 3);
}

TEST_CASE("a question counts once all its choices are scored, in any order", "[eval]") {
  const LoadedTask loaded = two_questions({"acc"});
  std::vector<std::string> reports;
  RunningAccuracy running(loaded, append_to(reports));
  running.add({3, 0}, scores_of({-1, 0, 0, -9}));
  CHECK(reports.empty());
  running.add({1}, scores_of({-1, -2, 0, -9}));  // b is right, a is chosen
  running.add({2}, scores_of({-1, -2, -3, -9}));
  CHECK((reports == std::vector<std::string>{"acc 0 of 1", "acc 0.5 of 2"}));
}

TEST_CASE("the main metric is acc, else exact_match, else the first", "[eval]") {
  CHECK(main_metric(two_questions({"perplexity", "acc"}).task).name == "acc");
  CHECK(main_metric(two_questions({"acc_norm", "exact_match"}).task).name == "exact_match");
  CHECK(main_metric(two_questions({"acc_norm", "acc_bytes"}).task).name == "acc_norm");
}

TEST_CASE("generated answers are scored as they complete", "[eval]") {
  LoadedTask loaded;
  loaded.task.output = OutputType::kGenerateUntil;
  loaded.task.filters = {
      {"first", [](const std::string& answer, const OrderedJson&) { return answer.substr(0, 1); }}};
  loaded.task.metrics.push_back({.name = "exact_match", .filter = "first"});
  for (const char* target : {"a", "b", "c"}) {
    Question question;
    question.target = target;
    loaded.questions.push_back(question);
  }
  std::vector<std::string> reports;
  RunningAccuracy running(loaded, append_to(reports));
  running.add_generated(0, "a, I think");
  running.add_generated(1, "c");
  CHECK((reports == std::vector<std::string>{"exact_match 1 of 1", "exact_match 0.5 of 2"}));
}

// Averages of groups and of the papers' tables.

TEST_CASE("every name is unique, and groups have known tasks", "[eval]") {
  std::set<std::string> names;
  for (const auto& task : known_tasks()) {
    CAPTURE(task.name);
    CHECK(names.insert(task.name).second);
    CHECK_FALSE(task.metrics.empty());
    CHECK_FALSE(task.data.hub.empty());
    CHECK_FALSE(task.data.schema.empty());
    CHECK((task.harness_items > 0) != task.name.starts_with("mmlu_"));
    CHECK(task.description.find('<') == std::string::npos);  // no variable is left
  }
  CHECK(known_tasks().size() == 129);
  CHECK(known_tasks(Compat::k041).size() == 129);
  for (const auto& group : known_groups()) {
    CAPTURE(group.name);
    CHECK(names.insert(group.name).second);
    for (const auto& task : group_tasks(group)) {
      CHECK(names.contains(task));
    }
  }
  CHECK(group_tasks(*find_group("mmlu")).size() == 57);
  CHECK(group_tasks(*find_group("mmlu_stem")).size() == 19);
  CHECK(group_tasks(*find_group("bbh_zeroshot")).size() == 27);
  CHECK(group_tasks(*find_group("leaderboard_bbh")).size() == 24);
  CHECK(group_tasks(*find_group("super-glue-lm-eval-v1")).size() == 8);
  CHECK((groups_among({"piqa", "mmlu"}) ==
         std::vector<std::string>{"mmlu", "mmlu_stem", "mmlu_other", "mmlu_social_sciences",
                                  "mmlu_humanities"}));
}

TEST_CASE("a group's mean weighs by questions, its error is pooled", "[eval]") {
  const Group group{"g", {"a", "b", "c", "not run"}, "", "acc"};
  const std::map<std::string, TaskAverage> tasks = {
      {"a", {{0.5, 0.05}, 100}}, {"b", {{0.25, 0.02}, 300}}, {"c", {{1.0, 0.1}, 20}}};
  const auto found = average(group, tasks, Compat::kCurrent);
  REQUIRE(found);
  CHECK(found->questions == 420);
  CHECK(found->mean.value == Approx((50 + 75 + 20) / 420.0).epsilon(1e-14));
  // lm_eval.api.metrics.pooled_sample_stderr([.05, .02, .1], [100, 300, 20])
  CHECK(found->mean.standard_error.value() == Approx(0.01918012322353359).epsilon(1e-12));
  CHECK_FALSE(average(group, {}, Compat::kCurrent));
}

TEST_CASE("compat 0.4.1 has the same mean, and the spread of the tasks as its error", "[eval]") {
  const Group group{"g", {"a", "b"}, "", "acc"};
  const std::map<std::string, TaskAverage> tasks = {{"a", {{0.5, 0.05}, 100}},
                                                    {"b", {{0.25, 0.02}, 300}}};
  const auto found = average(group, tasks, Compat::k041);
  REQUIRE(found);
  CHECK(found->mean.value == Approx(0.3125).epsilon(1e-14));
  const double variance = (99 * 0.0025 + 299 * 0.0004) / 399 +
                          100.0 * 300 / (400.0 * 399) * (0.3125 - 0.25) * (0.3125 - 0.25);
  CHECK(found->mean.standard_error.value() == Approx(std::sqrt(variance)).epsilon(1e-12));
}

TEST_CASE("averages of the papers' rows equal the printed ones", "[eval]") {
  // The first row of Rectify-Router's Table 1: four columns and their average, both
  // truncated, not rounded: 135.15 / 4 = 33.7875.
  PaperTable table{"",
                   "t",
                   {"MMLU", "SuperGLUE", "TruthfulQA", "LogiQA"},
                   {0.2585, 0.5906, 206.0 / 817, 163.0 / 651},
                   2,
                   true};
  CHECK(to_text(table) ==
        "t\n MMLU  SuperGLUE  TruthfulQA  LogiQA    Avg\n"
        "25.85      59.06       25.21   25.03  33.78\n");
  CHECK(per_cent(0.337875, 2, true) == "33.78");
  CHECK(per_cent(0.2903, 2, true) == "29.03");
  CHECK(per_cent(0.3856, 1, false) == "38.6");
  table.values[1] = std::nullopt;
  CHECK_FALSE(table.is_complete());
  CHECK(to_text(table).find("          -") != std::string::npos);
}

TEST_CASE("SuperGLUE has two averages, and Dynamic MoE's average has five tasks", "[eval]") {
  std::map<std::string, double> values = {
      {"mmlu acc", 0.3}, {"truthfulqa_mc1 acc", 0.25}, {"logiqa acc", 0.2}, {"record em", 0.9}};
  for (const char* task : {"boolq", "cb", "copa", "multirc", "sglue_rte", "wic", "wsc"}) {
    values[std::string(task) + " acc"] = 0.5;
  }
  const auto tables = paper_tables(values);
  REQUIRE(tables.size() == 3);
  CHECK(tables[0].values[1].value() == Approx(0.5));
  CHECK(tables[1].values[1].value() == Approx((7 * 0.5 + 0.9) / 8));
  CHECK(tables[0].average().value() == Approx((0.3 + 0.5 + 0.25 + 0.2) / 4));
  CHECK_FALSE(tables[2].is_complete());
  CHECK(tables[2].columns.size() == 5);
}

// Comparison of two evaluations.

TEST_CASE("McNemar's exact test sums both tails of the binomial distribution", "[eval]") {
  CHECK(mcnemar(0, 0) == 1.0);
  CHECK(mcnemar(5, 5) == 1.0);
  CHECK(mcnemar(0, 5) == Approx(2 * std::pow(0.5, 5)).epsilon(1e-12));
  CHECK(mcnemar(8, 2) == Approx(2 * 56.0 / 1024).epsilon(1e-12));  // 1 + 10 + 45 of 1024
  CHECK(mcnemar(2, 8) == mcnemar(8, 2));
  CHECK(mcnemar(3000, 4000) < 1e-30);
}

TEST_CASE("differences are paired by question, and listed", "[eval]") {
  const TempDir folder;
  write_file(folder / "model/samples_t_2024-05-01T10-00-00.jsonl",
             log_line(0, 1) + log_line(1, 0) + log_line(2, 1) + log_line(9, 1));
  write_file(folder / "model/samples_t_2023-05-01T10-00-00.jsonl", log_line(0, 0));
  write_file(folder / "model/samples_t_other.jsonl", log_line(0, 0));
  const OtherRun other = read_run(folder.path(), {"t", "absent"});
  REQUIRE(other.size() == 1);
  const auto differences = compare(report_of({1, 1, 0, 1}), other.at("t"));
  REQUIRE(differences.size() == 1);
  const Difference& d = differences[0];
  CHECK(d.questions == 3);
  CHECK(d.ours == Approx(2.0 / 3));
  CHECK(d.theirs == Approx(2.0 / 3));
  CHECK(d.is_binary);
  CHECK(d.only_ours == 1);
  CHECK(d.only_theirs == 1);
  CHECK(d.p == 1.0);
  CHECK(to_item_list(differences) ==
        "t acc question 1: this 1.0000, other 0.0000\n"
        "t acc question 2: this 0.0000, other 1.0000\n");
  CHECK(to_table(differences).find("\nt     acc          3    0.6667    0.6667   +0.0000") !=
        std::string::npos);
  CHECK(to_json(differences)[0]["test"] == "mcnemar_exact");
}

TEST_CASE("values between 0 and 1 get a paired normal test", "[eval]") {
  const OtherTask other = {{0, {"1", {{"acc", 0.25}}}}, {1, {"1", {{"acc", 0.5}}}}};
  const auto differences = compare(report_of({0.5, 0.5}), other);
  CHECK_FALSE(differences.at(0).is_binary);
  // Gaps 0.25 and 0: mean 0.125, standard error 0.125, so one standard error.
  CHECK(differences[0].error == Approx(0.125));
  CHECK(differences[0].p == Approx(0.31731050786291415));
}

TEST_CASE("another file of questions, and a folder without logs, are refused", "[eval]") {
  const TempDir folder;
  const auto error = [](const std::filesystem::path& run) {
    return user_error_of([&] { read_run(run, {"t", "u"}); });
  };
  CHECK_THAT(error(folder / "x"), contains_text("--against " + (folder / "x").string()));
  CHECK_THAT(error(folder.path()), contains_text("t, u"));
  const OtherTask other = {{0, {"2", {{"acc", 1.0}}}}};
  CHECK_THAT(user_error_of([&] { compare(report_of({1}), other); }),
             contains_text("question 0 of t") && contains_text("'2'"));
  write_file(folder / "samples_t.jsonl", "{\"doc_id\": \"x\"}\n");
  CHECK_THAT(error(folder.path()), contains_text("samples_t.jsonl line 1: 'doc_id'"));
}

}  // namespace
}  // namespace moe::eval
