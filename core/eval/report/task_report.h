#pragma once
// Results of a task (values of its questions and their aggregates), averages over groups of tasks,
// and the tables of results of two papers.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/scoring/score.h"
#include "core/eval/tasks/tasks.h"

namespace moe::eval {

struct TaskReport {
  LoadedTask loaded;
  std::vector<std::vector<Score>> scores;  // [question][choice]; empty for generate_until
  std::vector<std::string> answers = {};   // [question]; for generate_until only
  std::map<std::string, std::vector<double>> values = {};  // by Metric::key(), one per question
  std::map<std::string, Mean> metrics = {};                // by Metric::key()
  Scores run = {};          // from score_requests(), with `scores` moved to the member above
  int64_t cut_choices = 0;  // choices longer than the window, of which only the end is scored
  int64_t questions() const { return std::ssize(loaded.questions); }
};

// Computes values and aggregates of `run`, the scores of text_pairs(loaded.questions). `resamples`:
// see aggregate().
TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples = kBootstrapSamples);
// Computes values and aggregates of generated answers, one per question.
TaskReport make_generated_report(LoadedTask loaded, std::vector<std::string> answers);

// Returns the result of the task's filter named `filter` for a generated answer.
std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer);

// Returns the share of routing requests that are dropped, over all MoE layers.
double drop_rate(const TaskReport& report);

// Returns the metric that represents a task: acc, else exact_match, else the first one.
const Metric& main_metric(const Task& task);

// Running mean of a task's main metric over its complete questions. Reports nothing if the metric
// is not a mean.
class RunningAccuracy {
 public:
  // Called with the metric's name, its mean, and the number of complete questions.
  using Callback = std::function<void(const std::string& metric, double mean, int64_t questions)>;

  // `loaded` must outlive the object.
  RunningAccuracy(const LoadedTask& loaded, Callback callback);

  // Adds requests whose scores are now in `so_far`, as indices into text_pairs(loaded.questions).
  void add(const std::vector<size_t>& requests, const Scores& so_far);
  void add_generated(size_t question, const std::string& answer);

 private:
  void report() const;

  const LoadedTask& loaded_;
  Callback callback_;
  std::vector<size_t> question_indices_;  // [requests] index of the question
  std::vector<size_t> first_requests_;    // [questions] index of the first request
  std::vector<size_t> num_missing_;       // [questions] number of choices without a score
  double sum_ = 0;
  int64_t questions_ = 0;
};

struct TaskAverage {
  Mean mean;
  int64_t questions = 0;
};
struct GroupAverage {
  Group group;
  Mean mean;
  int64_t questions = 0;
};

// Returns the mean over the group's tasks that are in `tasks`, weighted by their numbers of
// questions n_i, with the pooled standard error of the harness: sqrt(sum((n_i - 1) n_i se_i^2) /
// (sum n_i - number of tasks) / sum n_i). Compat::k041 adds the variance between the members.
std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks, Compat compat);

// A row of results in the form of a paper's table.
struct PaperTable {
  std::string name;   // name of the group of its tasks (tasks/known/papers.toml)
  std::string title;  // paper, table, and our definitions of columns that the paper leaves open
  std::vector<std::string> columns;
  std::vector<std::optional<double>> values;  // 0 to 1, one per column; nullopt: not evaluated
  int decimals = 1;
  bool truncates = false;  // print 25.038 % as 25.03, as in the paper, not as 25.04

  std::optional<double> average() const;  // over all columns; nullopt if a value is missing
  bool is_complete() const { return average().has_value(); }
};

// Returns three tables. `values` maps "TASK METRIC" and "GROUP METRIC" to means; missing entries
// give empty columns.
//   rectify_router  Rectify-Router, Table 1, which does not define SuperGLUE: a table with the mean
//                   of acc over seven tasks, and one with these tasks and em of ReCoRD
//   dynamic_moe     Dynamic MoE, Table 1
std::vector<PaperTable> paper_tables(const std::map<std::string, double>& values);

// Returns three lines: title, columns, values in per cent.
std::string to_text(const PaperTable& table);
// Returns `fraction` in per cent, rounded or truncated to `decimals`.
std::string per_cent(double fraction, int decimals, bool truncates);

// Returns the rows as lines with two spaces between columns. `left_columns` are left-aligned, the
// others right-aligned. No row may have more cells than the first.
std::string align_columns(const std::vector<std::vector<std::string>>& rows,
                          const std::vector<size_t>& left_columns = {});

}  // namespace moe::eval
