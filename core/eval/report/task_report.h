#pragma once
// The results of one task: values of single questions become means. RunningAccuracy is its main
// metric so far, while requests are scored in whatever order is fastest.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/scoring/score.h"
#include "core/eval/tasks/tasks.h"

namespace moe::eval {

struct TaskReport {
  LoadedTask loaded;
  std::vector<std::vector<Score>> scores;  // [question][choice]; empty for generate_until
  std::vector<std::string> answers = {};   // [question], generated
  std::map<std::string, std::vector<double>> values = {};  // by Metric::key(), one a question
  std::map<std::string, Mean> metrics = {};                // by Metric::key()
  Scores run = {};          // counters and forwards (its scores are moved into `scores`)
  int64_t cut_choices = 0;  // longer than the window: scored by their end
  int64_t questions() const { return static_cast<int64_t>(loaded.questions.size()); }
};

// Sums `scores` of a task's requests back into questions and means. `resamples`: bootstrap samples
// of a perplexity's standard error, 0 = none.
TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples = 100000);
// The same of generated answers.
TaskReport make_generated_report(LoadedTask loaded, std::vector<std::string> answers);
// What a filter of the task makes of a generated answer.
std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer);
// A metric's value of a generated answer.
double judge_answer(const LoadedTask& loaded, const Metric& metric, size_t question,
                    const std::string& answer);
double drop_rate(
    const TaskReport& report);  // dropped requests / requests over all MoE layers, 0..1

// The metric that stands for a task where there is room for one: acc, else exact_match, else its
// first.
const Metric& main_metric(const Task& task);

class RunningAccuracy {
 public:
  // Gets the metric's name, its mean, and over how many questions: those all of whose choices are
  // scored.
  using Callback = std::function<void(const std::string& metric, double mean, int64_t questions)>;

  // Of a task whose requests are text_pairs(its questions), in order; it must outlive this.
  RunningAccuracy(const LoadedTask& loaded, Callback callback);

  void add(const std::vector<size_t>& requests, const Scores& so_far);
  // The answer that was generated for a question.
  void add_generated(size_t question, const std::string& answer);

 private:
  void report() const;

  const LoadedTask& loaded_;
  Callback callback_;
  std::vector<size_t> question_of_;  // [requests]
  std::vector<size_t> first_;        // [questions] its first request
  std::vector<size_t> missing_;      // [questions] choices without an answer
  double sum_ = 0;
  int64_t questions_ = 0;
};

}  // namespace moe::eval
