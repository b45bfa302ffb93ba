#include "core/eval/report/averages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace moe::eval {

namespace {

GroupAverage pooled(const Group& group, const std::vector<TaskAverage>& tasks) {
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
  const double freedom = n - static_cast<double>(tasks.size());
  GroupAverage average{group, {sum / n, std::nullopt}, questions};
  if (has_errors && freedom > 0) {
    average.mean.standard_error = std::sqrt(squares / freedom / n);
  }
  return average;
}

// evaluator.py of 0.4.1, its running mean and variance included. The variance depends on the order
// of the tasks, which there is the file system's: the third digit of the error can differ.
GroupAverage running(const Group& group, const std::vector<TaskAverage>& members) {
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

}  // namespace

std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks,
                                    Compat compat) {
  std::vector<TaskAverage> members;
  for (const auto& name : compat == Compat::k041 ? group.members : tasks_of(group)) {
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
  return compat == Compat::k041 ? running(group, members) : pooled(group, members);
}

namespace {

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
  return values.empty() ? std::nullopt
                        : std::optional<double>(sum / static_cast<double>(values.size()));
}

std::optional<double> super_glue(const Values& values, bool with_record) {
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
          {find(values, "mmlu acc"), super_glue(values, with_record),
           find(values, "truthfulqa_mc1 acc"), find(values, "logiqa acc")},
          2,
          true};
}

}  // namespace

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
  // A hair is added before cutting, for fractions such as 0.2903 that binary cannot hold.
  const double value =
      truncates ? std::floor(fraction * 100 * scale + 1e-9) / scale : fraction * 100;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string to_text(const PaperTable& table) {
  std::string head, row;
  auto values = table.values;
  auto columns = table.columns;
  for (auto& value : values) {  // that paper averages what it prints
    if (value && table.truncates) {
      value = std::stod(per_cent(*value, table.decimals, true)) / 100;
    }
  }
  values.push_back(mean(values));
  columns.emplace_back("Avg");
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string value =
        values[i] ? per_cent(*values[i], table.decimals, table.truncates) : "-";
    const size_t width = std::max(columns[i].size(), value.size());
    head += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", columns[i], width);
    row += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", value, width);
  }
  return table.title + "\n" + head + "\n" + row + "\n";
}

}  // namespace moe::eval
