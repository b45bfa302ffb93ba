#pragma once
// The accuracy so far, while requests are answered in whatever order is fastest.

#include <functional>
#include <vector>

#include "core/eval/score.h"
#include "core/eval/tasks.h"

namespace moe::eval {

// The metric that stands for a task where there is room for one: acc, else exact_match, else its
// first.
const Metric& main_metric(const Task& task);

class RunningAccuracy {
 public:
  // Told the metric's name, its mean, and over how many questions, all of whose choices are
  // answered.
  using Tell = std::function<void(const std::string& metric, double mean, int64_t questions)>;

  // Of a task whose requests are text_pairs(its questions), in order; it must outlive this.
  RunningAccuracy(const LoadedTask& loaded, Tell tell);

  void add(const std::vector<size_t>& requests, const Scores& so_far);
  // The answer that was written to a question.
  void add_written(size_t question, const std::string& answer);

 private:
  void tell() const;

  const LoadedTask& loaded_;
  Tell tell_;
  std::vector<size_t> question_of_;  // [requests]
  std::vector<size_t> first_;        // [questions] its first request
  std::vector<size_t> missing_;      // [questions] choices without an answer
  double sum_ = 0;
  int64_t questions_ = 0;
};

}  // namespace moe::eval
