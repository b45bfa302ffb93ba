#include "core/eval/report/task_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

double score_answer(const LoadedTask& loaded, const Metric& metric, size_t question,
                    const std::string& answer) {
  return exact_match(filtered_answer(loaded, metric.filter, question, answer),
                     loaded.questions[question].target, loaded.task.ignores_case_and_punctuation);
}

GroupAverage pooled_average(const Group& group, const std::vector<TaskAverage>& tasks) {
  double sum = 0, squares = 0;
  bool has_errors = true;
  int64_t questions = 0;
  for (const auto& [mean, n] : tasks) {
    const auto size = static_cast<double>(n);
    sum += mean.value * size;
    questions += n;
    has_errors = has_errors && mean.standard_error.has_value();
    squares += (size - 1) * size * std::pow(mean.standard_error.value_or(0), 2);
  }
  const auto n = static_cast<double>(questions);
  const double degrees_of_freedom = n - tasks.size();
  GroupAverage average{group, {sum / n, std::nullopt}, questions};
  if (has_errors && degrees_of_freedom > 0) {
    average.mean.standard_error = std::sqrt(squares / degrees_of_freedom / n);
  }
  return average;
}

// Returns the mean and standard error as computed by evaluator.py of 0.4.1, which updates them task
// by task. There the order is that of files in a folder, so the third digit can differ.
GroupAverage average_0_4_1(const Group& group, const std::vector<TaskAverage>& members) {
  double mean = 0, variance = 0, total = 0;
  bool has_errors = true;
  for (const auto& [task, n] : members) {
    const auto size = static_cast<double>(n);
    const double task_variance = std::pow(task.standard_error.value_or(0), 2);
    has_errors = has_errors && task.standard_error.has_value();
    if (total == 0) {
      mean = task.value;
      variance = task_variance;
    } else {
      mean = (mean * total + task.value * size) / (total + size);
      variance =
          ((total - 1) * variance + (size - 1) * task_variance) / (total + size - 1) +
          total * size / ((total + size) * (total + size - 1)) * std::pow(mean - task.value, 2);
    }
    total += size;
  }
  GroupAverage average{group, {mean, std::nullopt}, static_cast<int64_t>(total)};
  if (has_errors) {
    average.mean.standard_error = std::sqrt(variance);
  }
  return average;
}

using Values = std::map<std::string, double>;

std::optional<double> find(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? std::nullopt : std::optional<double>(found->second);
}

std::optional<double> mean(const std::vector<std::optional<double>>& values) {
  double sum = 0;
  for (const auto& value : values) {
    if (!value) {
      return std::nullopt;
    }
    sum += *value;
  }
  return values.empty() ? std::nullopt : std::optional<double>(sum / values.size());
}

std::optional<double> superglue_mean(const Values& values, bool with_record) {
  std::vector<std::optional<double>> tasks;
  for (const char* task : {"boolq", "cb", "copa", "multirc", "sglue_rte", "wic", "wsc"}) {
    tasks.push_back(find(values, std::string(task) + " acc"));
  }
  if (with_record) {
    tasks.push_back(find(values, "record em"));
  }
  return mean(tasks);
}

PaperTable rectify_router(const Values& values, bool with_record) {
  return {"rectify_router",
          std::string("Rectify-Router, Table 1, SuperGLUE as ") +
              (with_record ? "8 tasks with ReCoRD's em" : "the 7 tasks with acc"),
          {"MMLU", "SuperGLUE", "TruthfulQA", "LogiQA"},
          {find(values, "mmlu acc"), superglue_mean(values, with_record),
           find(values, "truthfulqa_mc1 acc"), find(values, "logiqa acc")},
          2,
          true};
}

}  // namespace

double drop_rate(const TaskReport& report) {
  const route::CounterValues sum = route::sum_layers(report.run.counters).sum;
  return route::ratio(sum.dropped_requests, sum.requests);
}

TaskReport make_task_report(LoadedTask loaded, Scores run, int64_t resamples) {
  TaskReport report{std::move(loaded), {}};
  report.run = std::move(run);
  auto next = report.run.scores.begin();
  for (const auto& question : report.loaded.questions) {
    const auto end = next + std::ssize(question.choices);
    report.scores.emplace_back(next, end);
    next = end;
    for (const auto& metric : report.loaded.task.metrics) {
      report.values[metric.key()].push_back(metric.compute(question, report.scores.back()));
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
          score_answer(report.loaded, metric, i, report.answers[i]));
    }
  }
  fill_means(report, 0);
  return report;
}

std::string filtered_answer(const LoadedTask& loaded, const std::string& filter, size_t question,
                            const std::string& answer) {
  const auto found = std::ranges::find(loaded.task.filters, filter, &AnswerFilter::name);
  MOE_CHECK(found != loaded.task.filters.end(), "no filter {}", filter);
  return found->apply(answer, loaded.questions[question].fields);
}

const Metric& main_metric(const Task& task) {
  MOE_CHECK(!task.metrics.empty(), "{}", task.name);
  for (const char* name : {"acc", "exact_match"}) {
    const auto found = std::ranges::find(task.metrics, name, &Metric::name);
    if (found != task.metrics.end()) {
      return *found;
    }
  }
  return task.metrics.front();
}

RunningAccuracy::RunningAccuracy(const LoadedTask& loaded, Callback callback)
    : loaded_(loaded), callback_(std::move(callback)) {
  for (const auto& question : loaded.questions) {
    first_requests_.push_back(question_indices_.size());
    num_missing_.push_back(question.choices.size());
    question_indices_.resize(question_indices_.size() + question.choices.size(),
                             num_missing_.size() - 1);
  }
}

void RunningAccuracy::add(const std::vector<size_t>& requests, const Scores& so_far) {
  const Metric& metric = main_metric(loaded_.task);
  if (metric.aggregation != Aggregation::kMean || !metric.compute) {
    return;  // the metric is not averaged over questions
  }
  for (const size_t request : requests) {
    const size_t question = question_indices_.at(request);
    if (--num_missing_[question] > 0) {
      continue;
    }
    const auto begin = so_far.scores.begin() + static_cast<int64_t>(first_requests_[question]);
    const QuestionScores scores(
        begin, begin + static_cast<int64_t>(loaded_.questions[question].choices.size()));
    sum_ += metric.compute(loaded_.questions[question], scores);
    ++questions_;
  }
  report();
}

void RunningAccuracy::add_generated(size_t question, const std::string& answer) {
  sum_ += score_answer(loaded_, main_metric(loaded_.task), question, answer);
  ++questions_;
  report();
}

void RunningAccuracy::report() const {
  if (questions_ > 0) {
    callback_(main_metric(loaded_.task).name, sum_ / questions_, questions_);
  }
}

std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks,
                                    Compat compat) {
  std::vector<TaskAverage> members;
  for (const auto& name : compat == Compat::k041 ? group.members : group_tasks(group)) {
    if (const Group* inner = find_group(name)) {
      if (const auto inside = average(*inner, tasks, compat)) {
        members.push_back({inside->mean, inside->questions});
      }
    } else if (const auto found = tasks.find(name); found != tasks.end()) {
      members.push_back(found->second);
    }
  }
  if (members.empty() || group.metric.empty()) {
    return std::nullopt;
  }
  return compat == Compat::k041 ? average_0_4_1(group, members) : pooled_average(group, members);
}

std::optional<double> PaperTable::average() const { return mean(values); }

std::vector<PaperTable> paper_tables(const Values& values) {
  return {rectify_router(values, false),
          rectify_router(values, true),
          {"dynamic_moe",
           "Dynamic MoE, Table 1, by acc and BBH's flexible-extract",
           {"PIQA", "Hellaswag", "ARC-e", "Commonsense QA", "BBH"},
           {find(values, "piqa acc"), find(values, "hellaswag acc"), find(values, "arc_easy acc"),
            find(values, "commonsense_qa acc"),
            find(values, "bbh_zeroshot exact_match,flexible-extract")},
           1,
           false}};
}

std::string per_cent(double fraction, int decimals, bool truncates) {
  const double scale = std::pow(10.0, decimals);
  // 1e-9 compensates the rounding of fractions such as 0.2903 to binary before truncation.
  const double value =
      truncates ? std::floor(fraction * 100 * scale + 1e-9) / scale : fraction * 100;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string to_text(const PaperTable& table) {
  auto values = table.values;
  for (auto& value : values) {  // the paper averages its printed values
    if (value && table.truncates) {
      value = std::stod(per_cent(*value, table.decimals, true)) / 100;
    }
  }
  values.push_back(mean(values));
  std::vector<std::vector<std::string>> rows = {table.columns, {}};
  rows[0].emplace_back("Avg");
  for (const auto& value : values) {
    rows[1].push_back(value ? per_cent(*value, table.decimals, table.truncates) : "-");
  }
  return table.title + "\n" + align_columns(rows);
}

std::string align_columns(const std::vector<std::vector<std::string>>& rows,
                          const std::vector<size_t>& left_columns) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      const bool is_left = std::ranges::find(left_columns, column) != left_columns.end();
      text += column == 0 ? "" : "  ";
      text += is_left ? fmt::format("{:<{}}", row[column], widths[column])
                      : fmt::format("{:>{}}", row[column], widths[column]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace moe::eval
