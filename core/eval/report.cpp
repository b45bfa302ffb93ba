// A run in numbers: what single questions gave becomes means of tasks, groups and papers.
#include "core/eval/report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/filters.h"

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

std::map<std::string, double> values_by_name(const RunReport& report) {
  std::map<std::string, double> values;
  for (const auto& task : report.tasks) {
    for (const auto& [metric, mean] : task.metrics) {
      values[task.loaded.task.name + " " + metric] = mean.value;
    }
  }
  for (const auto& group : known_groups()) {
    std::map<std::string, TaskAverage> tasks;
    for (const auto& task : report.tasks) {
      if (const auto mean = task.metrics.find(group.metric); mean != task.metrics.end()) {
        tasks[task.loaded.task.name] = {mean->second, task.questions()};
      }
    }
    const auto members = tasks_of(group);
    const bool has_all = std::all_of(members.begin(), members.end(),
                                     [&](const auto& member) { return tasks.contains(member); });
    if (has_all && !group.metric.empty()) {
      values[group.name + " " + group.metric] = average(group, tasks, report.compat)->mean.value;
    }
  }
  return values;
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

TaskReport make_written_report(LoadedTask loaded, std::vector<std::string> answers) {
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
  for (const auto& [name, apply] : loaded.task.generation.filters) {
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
                     loaded.questions[question].target,
                     loaded.task.generation.ignores_case_and_marks);
}

void add_averages(RunReport& report, const std::vector<std::string>& names) {
  for (const auto& name : groups_among(names)) {
    const Group& group = *find_group(name);
    std::map<std::string, TaskAverage> tasks;
    for (const auto& task : report.tasks) {
      // BIG-Bench-Hard of 0.4.1 has one filter, and its name does not stand in the key.
      auto mean = task.metrics.find(group.metric);
      mean = mean == task.metrics.end() ? task.metrics.find("exact_match") : mean;
      if (mean != task.metrics.end()) {
        tasks[task.loaded.task.name] = {mean->second, task.questions()};
      }
    }
    if (const auto found = average(group, tasks, report.compat)) {
      report.groups.push_back(*found);
    }
  }
  for (auto& table : paper_tables(values_by_name(report))) {
    const bool is_asked = std::find(names.begin(), names.end(), table.name) != names.end();
    if (is_asked || table.is_complete()) {
      report.papers.push_back(std::move(table));
    }
  }
}

}  // namespace moe::eval
