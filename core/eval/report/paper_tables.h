#pragma once
// The averages of the papers whose models this tool trains, printed as they print them.

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moe::eval {

struct PaperTable {
  std::string name;   // group of the table (groups.h) that holds its tasks
  std::string title;  // paper, table, and how this row reads it
  std::vector<std::string> columns;
  std::vector<std::optional<double>> values;  // fractions; none = not evaluated
  int decimals = 1;
  bool truncates = false;  // 25.038 % prints as 25.03, as in that paper

  std::optional<double> average() const;  // over all columns; none when one is missing
  bool is_complete() const { return average().has_value(); }
};

// "rectify_router": MMLU, SuperGLUE, TruthfulQA, LogiQA (Table 1 there), twice: SuperGLUE as the
// mean accuracy of the seven tasks that have one, and of eight with ReCoRD's exact match; the paper
// does not say which. "dynamic_moe": PIQA, HellaSwag, ARC-e, Commonsense QA, BBH (Table 1 there).
// `values`: "task metric" -> mean, "mmlu acc" and "bbh_zeroshot exact_match,flexible-extract" for
// groups.
std::vector<PaperTable> paper_tables(const std::map<std::string, double>& values);

// Two lines: columns, values in per cent.
std::string to_text(const PaperTable& table);
std::string per_cent(double fraction, int decimals, bool truncates);

}  // namespace moe::eval
