#include "core/eval/report/task_report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/metrics/filters.h"

namespace moe::eval {
namespace {

void fill_means(TaskReport& report, int64_t resamples) {
  std::vector<int64_t> golds;
  for (const auto& question : report.loaded.questions) {
    golds.push_back(question.gold);
  }
  for (const auto& metric : report.loaded.task.metrics) {
    report.metrics[metric.key()] =
        aggregate(metric, report.values.at(metric.key()), golds, resamples);
  }
}

}  // namespace

double drop_rate(const TaskReport& report) {
  int64_t requests = 0, dropped = 0;
  for (const auto& layer : report.run.counters) {
    requests += layer.requests;
    dropped += layer.dropped_requests;
  }
  return requests == 0 ? 0.0 : static_cast<double>(dropped) / static_cast<double>(requests);
}

TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples) {
  TaskReport report{std::move(loaded), {}};
  report.run = std::move(run);
  auto next = report.run.scores.begin();
  for (const auto& question : report.loaded.questions) {
    const auto end = next + static_cast<int64_t>(question.choices.size());
    report.scores.emplace_back(next, end);
    next = end;
    for (const auto& metric : report.loaded.task.metrics) {
      report.values[metric.key()].push_back(metric.judge(question, report.scores.back()));
    }
  }
  MOE_CHECK(next == report.run.scores.end(), "scores left over");
  report.run.scores.clear();
  fill_means(report, resamples);
  return report;
}

TaskReport make_generated_report(LoadedTask loaded, std::vector<std::string> answers) {
  TaskReport report{std::move(loaded), {}, std::move(answers)};
  const Task& task = report.loaded.task;
  MOE_CHECK(report.answers.size() == report.loaded.questions.size(), "{}", report.answers.size());
  for (const auto& metric : task.metrics) {
    for (size_t i = 0; i < report.answers.size(); ++i) {
      report.values[metric.key()].push_back(
          judge_answer(report.loaded, metric, i, report.answers[i]));
    }
  }
  fill_means(report, 0);
  return report;
}

std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer) {
  for (const auto& [name, apply] : loaded.task.filters) {
    if (name == filter) {
      return apply(answer, loaded.questions[question].fields);
    }
  }
  MOE_CHECK(false, "no filter {}", filter);
  return {};
}

double judge_answer(const LoadedTask& loaded, const Metric& metric, size_t question,
                    const std::string& answer) {
  return exact_match(filtered_answer(loaded, metric.filter, question, answer),
                     loaded.questions[question].target, loaded.task.ignores_case_and_marks);
}

const Metric& main_metric(const Task& task) {
  MOE_CHECK(!task.metrics.empty(), "{}", task.name);
  for (const char* name : {"acc", "exact_match"}) {
    const auto found = std::find_if(task.metrics.begin(), task.metrics.end(),
                                    [&](const auto& m) { return m.name == name; });
    if (found != task.metrics.end()) {
      return *found;
    }
  }
  return task.metrics.front();
}

RunningAccuracy::RunningAccuracy(const LoadedTask& loaded, Callback callback)
    : loaded_(loaded), callback_(std::move(callback)) {
  for (const auto& question : loaded.questions) {
    first_.push_back(question_of_.size());
    missing_.push_back(question.choices.size());
    question_of_.resize(question_of_.size() + question.choices.size(), missing_.size() - 1);
  }
}

void RunningAccuracy::add(const std::vector<size_t>& requests, const Scores& so_far) {
  const Metric& metric = main_metric(loaded_.task);
  if (metric.aggregation != Aggregation::kMean || !metric.judge) {
    return;  // no sum of questions
  }
  for (const size_t request : requests) {
    const size_t question = question_of_.at(request);
    if (--missing_[question] > 0) {
      continue;
    }
    const auto begin = so_far.scores.begin() + static_cast<int64_t>(first_[question]);
    const QuestionScores scores(
        begin, begin + static_cast<int64_t>(loaded_.questions[question].choices.size()));
    sum_ += metric.judge(loaded_.questions[question], scores);
    ++questions_;
  }
  report();
}

void RunningAccuracy::add_generated(size_t question, const std::string& answer) {
  sum_ += judge_answer(loaded_, main_metric(loaded_.task), question, answer);
  ++questions_;
  report();
}

void RunningAccuracy::report() const {
  if (questions_ > 0) {
    callback_(main_metric(loaded_.task).name, sum_ / static_cast<double>(questions_), questions_);
  }
}

}  // namespace moe::eval
