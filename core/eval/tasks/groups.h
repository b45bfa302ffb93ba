#pragma once
// Averages over the tasks of a group.

#include <map>
#include <string>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/tasks/known_tasks.h"

namespace moe::eval {

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
