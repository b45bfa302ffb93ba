#include "core/eval/tasks/groups.h"

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

}  // namespace moe::eval
