#pragma once
// Results of a task (values of its questions and their aggregates), averages over groups of tasks,
// and the results tables of two papers.

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
  Scores run = {};          // of score_requests(), without its scores
  int64_t cut_choices = 0;  // number of choices longer than the window, scored by their end
  int64_t questions() const { return static_cast<int64_t>(loaded.questions.size()); }
};

// Computes values and aggregates. `run` has the scores of text_pairs(loaded.questions). `resamples`
// as in aggregate().
TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples = kBootstrapSamples);
// Computes values and aggregates of generated answers, one per question.
TaskReport make_generated_report(LoadedTask loaded, std::vector<std::string> answers);

// Returns the generated answer after the task's filter named `filter`.
std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer);

// Returns dropped routing requests / routing requests over all MoE layers, 0 to 1.
double drop_rate(const TaskReport& report);

// Returns the metric that represents the task where only one is shown: acc, else exact_match, else
// the first one.
const Metric& main_metric(const Task& task);

// Running mean of a task's main metric over the questions that are complete. Calls back only for
// metrics that are averaged over questions.
class RunningAccuracy {
 public:
  // Receives the metric's name, its mean, and the number of complete questions.
  using Callback = std::function<void(const std::string& metric, double mean, int64_t questions)>;

  // Indices passed to add() refer to text_pairs(loaded.questions). `loaded` must outlive the
  // object.
  RunningAccuracy(const LoadedTask& loaded, Callback callback);

  void add(const std::vector<size_t>& requests, const Scores& so_far);
  void add_generated(size_t question, const std::string& answer);

 private:
  void report() const;

  const LoadedTask& loaded_;
  Callback callback_;
  std::vector<size_t> question_indices_;  // [requests]
  std::vector<size_t> first_requests_;    // [questions]
  std::vector<size_t> num_missing_;       // [questions] choices without a score
  double sum_ = 0;
  int64_t questions_ = 0;
};

struct GroupAverage {
  Group group;
  Mean mean;
  int64_t questions = 0;
};
struct TaskAverage {
  Mean mean;
  int64_t questions = 0;
};

// Returns the mean of a group's tasks, weighted by their numbers of questions n_i, with the
// harness's pooled standard error: sqrt(sum((n_i - 1) n_i se_i^2) / (sum n_i - number of tasks) /
// sum n_i). Compat::k041 uses that version's formula, which adds the variance between the members.
// Skips members that are not in `tasks`. Returns nullopt if all are skipped or the group has no
// metric.
std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks, Compat compat);

// A row of results in the form of a paper's table.
struct PaperTable {
  std::string name;   // of the group of its tasks (tasks/known/papers.toml)
  std::string title;  // paper, table, and how a column is computed if the paper does not say
  std::vector<std::string> columns;
  std::vector<std::optional<double>> values;  // fractions, one per column; empty: not evaluated
  int decimals = 1;
  bool truncates = false;  // prints 25.038 % as 25.03, as the paper does

  std::optional<double> average() const;  // over all columns; empty if a value is missing
  bool is_complete() const { return average().has_value(); }
};

// Returns three tables. `values` maps "TASK METRIC" to the mean, also for the groups "mmlu acc" and
// "bbh_zeroshot exact_match,flexible-extract"; missing entries give empty columns.
//   rectify_router  MMLU, SuperGLUE, TruthfulQA, LogiQA (Rectify-Router, Table 1). Returned twice,
//                   because the paper does not define SuperGLUE: as the mean of the seven tasks
//                   with acc, and of eight with ReCoRD's em.
//   dynamic_moe     PIQA, HellaSwag, ARC-e, Commonsense QA, BBH (Dynamic MoE, Table 1)
std::vector<PaperTable> paper_tables(const std::map<std::string, double>& values);

// Returns three lines: title, columns, values in per cent. The average is that of the truncated
// values if table.truncates is set.
std::string to_text(const PaperTable& table);
// Returns `fraction` in per cent, rounded or truncated to `decimals`.
std::string per_cent(double fraction, int decimals, bool truncates);

// Returns the rows as lines, with columns two spaces apart. Columns are right-aligned except
// `left_columns`. The first row (required) has the most columns.
std::string align_columns(const std::vector<std::vector<std::string>>& rows,
                          const std::vector<size_t>& left_columns = {});

}  // namespace moe::eval
