#include "core/eval/report/task_report.h"

#include "core/base/json.h"
#include "tests/support/catch.h"

namespace moe::eval {
namespace {

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

TEST_CASE("a question counts when its last choice is answered, in any order", "[eval]") {
  const LoadedTask loaded = two_questions({"acc"});
  std::vector<std::string> reports;
  RunningAccuracy running(loaded, [&](const std::string& metric, double mean, int64_t questions) {
    reports.push_back(fmt::format("{} {} of {}", metric, mean, questions));
  });
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
  RunningAccuracy running(loaded, [&](const std::string& metric, double mean, int64_t questions) {
    reports.push_back(fmt::format("{} {} of {}", metric, mean, questions));
  });
  running.add_generated(0, "a, I think");
  running.add_generated(1, "c");
  CHECK((reports == std::vector<std::string>{"exact_match 1 of 1", "exact_match 0.5 of 2"}));
}

}  // namespace
}  // namespace moe::eval
