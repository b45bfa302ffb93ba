#include "core/eval/running_accuracy.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/report.h"

namespace moe::eval {

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

RunningAccuracy::RunningAccuracy(const LoadedTask& loaded, Tell tell)
    : loaded_(loaded), tell_(std::move(tell)) {
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
  tell();
}

void RunningAccuracy::add_written(size_t question, const std::string& answer) {
  sum_ += judge_answer(loaded_, main_metric(loaded_.task), question, answer);
  ++questions_;
  tell();
}

void RunningAccuracy::tell() const {
  if (questions_ > 0) {
    tell_(main_metric(loaded_.task).name, sum_ / static_cast<double>(questions_), questions_);
  }
}

}  // namespace moe::eval
