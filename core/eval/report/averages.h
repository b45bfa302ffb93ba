#pragma once
// Averages over the tasks of a group, and the tables of the papers whose models this tool trains.

#include <map>
#include <optional>
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

// Returns the mean of the tasks, weighted by their questions, with the harness's pooled standard
// error: sqrt(sum((n_i - 1) n_i se_i^2) / (sum n_i - tasks) / sum n_i). Under Compat::k041 the
// error is the spread of the tasks, as that version prints it. Skips members that are not in
// `tasks`; nullopt if none is.
std::optional<GroupAverage> average(const Group& group,
                                    const std::map<std::string, TaskAverage>& tasks, Compat compat);

struct PaperTable {
  std::string name;   // group of the table (tasks/known_tasks.h) that holds its tasks
  std::string title;  // paper, table, and how this row reads it
  std::vector<std::string> columns;
  std::vector<std::optional<double>> values;  // fractions; none = not evaluated
  int decimals = 1;
  bool truncates = false;  // 25.038 % prints as 25.03, as in that paper

  std::optional<double> average() const;  // over all columns; none when one is missing
  bool is_complete() const { return average().has_value(); }
};

// Returns the tables whose tasks `values` has. "rectify_router": MMLU, SuperGLUE, TruthfulQA,
// LogiQA (Table 1 there), twice: SuperGLUE as the mean accuracy of the seven tasks that have one,
// and of eight with ReCoRD's exact match; the paper does not say which. "dynamic_moe": PIQA,
// HellaSwag, ARC-e, Commonsense QA, BBH (Table 1 there). `values`: "task metric" -> mean, "mmlu
// acc" and "bbh_zeroshot exact_match,flexible-extract" for groups.
std::vector<PaperTable> paper_tables(const std::map<std::string, double>& values);

// Two lines: columns, values in per cent.
std::string to_text(const PaperTable& table);
std::string per_cent(double fraction, int decimals, bool truncates);

}  // namespace moe::eval
