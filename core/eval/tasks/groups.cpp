#include "core/eval/tasks/groups.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/eval/tasks/declare.h"

namespace moe::eval {
namespace {

std::vector<std::string> with_prefix(const std::string& prefix,
                                     const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const auto& name : names) {
    all.push_back(prefix + name);
  }
  return all;
}

std::vector<Group> make_groups() {
  std::vector<Group> groups;
  std::vector<std::string> areas;
  for (const auto& area : mmlu_areas()) {
    areas.push_back("mmlu_" + area.name);
    groups.push_back({areas.back(), with_prefix("mmlu_", area.subjects), "subjects of MMLU", "acc",
                      "2", area.name});
  }
  groups.push_back({"mmlu", areas, "the 57 subjects of MMLU", "acc", "2"});
  std::vector<std::string> written, chosen;
  for (const auto& task : bbh_tasks()) {
    (task.output == OutputType::kGenerateUntil ? written : chosen).push_back(task.name);
  }
  groups.push_back({"bbh_zeroshot", written, "BIG-Bench-Hard, answers written out",
                    "exact_match,flexible-extract", "3.0"});
  groups.push_back(
      {"leaderboard_bbh", chosen, "BIG-Bench-Hard, answers chosen, three examples", "acc_norm"});
  groups.push_back({"super-glue-lm-eval-v1",
                    {"boolq", "cb", "copa", "multirc", "record", "sglue_rte", "wic", "wsc"},
                    "SuperGLUE"});
  groups.push_back({"ai2_arc", {"arc_easy", "arc_challenge"}, "both sets of ARC"});
  groups.push_back({"truthfulqa", {"truthfulqa_mc1", "truthfulqa_mc2"}, "TruthfulQA's choices"});
  groups.push_back({"lambada", {"lambada_openai", "lambada_standard"}, "both forms of LAMBADA"});
  groups.push_back({"rectify_router",
                    {"mmlu", "super-glue-lm-eval-v1", "truthfulqa_mc1", "logiqa"},
                    "the four columns of the Rectify-Router paper"});
  groups.push_back({"dynamic_moe",
                    {"piqa", "hellaswag", "arc_easy", "commonsense_qa", "bbh_zeroshot"},
                    "the five rows of the Dynamic MoE paper"});
  return groups;
}

void add_tasks(const Group& group, std::vector<std::string>& tasks) {
  for (const auto& member : group.members) {
    if (const Group* inner = find_group(member)) {
      add_tasks(*inner, tasks);
    } else if (std::find(tasks.begin(), tasks.end(), member) == tasks.end()) {
      tasks.push_back(member);
    }
  }
}

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

const std::vector<Group>& known_groups() {
  static const std::vector<Group> groups = make_groups();
  return groups;
}

const Group* find_group(const std::string& name) {
  for (const auto& group : known_groups()) {
    if (group.name == name) {
      return &group;
    }
  }
  return nullptr;
}

std::vector<std::string> tasks_of(const Group& group) {
  std::vector<std::string> tasks;
  add_tasks(group, tasks);
  return tasks;
}

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
