#pragma once
// Tasks under one name, and the averages over them.

#include <map>
#include <string>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

struct SubjectArea {
  std::string name;
  std::vector<std::string> subjects;
};
const std::vector<SubjectArea>& mmlu_areas();  // table_mmlu.cpp, in the harness's order

struct Group {
  std::string name;
  std::vector<std::string> members;  // tasks and groups
  std::string about;
  std::string metric = {};      // averaged, as Metric::key(); empty = only a name for its members
  std::string version = "N/A";  // of the harness's definition
  std::string alias = {};
};
const std::vector<Group>& known_groups();
const Group* find_group(const std::string& name);

// The tasks of a group, members of members included, each once.
std::vector<std::string> tasks_of(const Group& group);

struct GroupAverage {
  Group group;
  Mean mean;
  int64_t questions = 0;
};
struct TaskAverage {
  Mean mean;
  int64_t questions = 0;
};
// The average over questions (the mean of the tasks, weighted by their questions), with the
// harness's pooled standard error: sqrt(sum((n_i - 1) n_i se_i^2) / (sum n_i - tasks) / sum n_i).
// 0.4.1 went through the members one by one and printed the spread of the tasks instead. Tasks that
// are not in `tasks` are left out; none of them: no average.
std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks, Compat compat);

}  // namespace moe::eval
