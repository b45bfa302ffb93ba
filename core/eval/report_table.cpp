// The table for people.
#include <algorithm>

#include "core/base/error.h"
#include "core/eval/report.h"

namespace moe::eval {
namespace {

using Row = std::vector<std::string>;

void add_row(std::vector<Row>& rows, const std::string& name, const std::string& version,
             const std::string& shots, int64_t questions, const std::string& metric,
             const Mean& mean) {
  rows.push_back({name, version, shots, fmt::format("{}", questions), metric,
                  fmt::format("{:.4f}", mean.value),
                  mean.standard_error ? fmt::format("{:.4f}", *mean.standard_error) : "N/A"});
}

std::vector<Row> table_rows(const RunReport& report) {
  std::vector<Row> rows = {{"Task", "Version", "Shots", "n", "Metric", "Value", "Stderr"}};
  for (const auto& task : report.tasks) {
    const auto& [name, version] = std::pair(task.loaded.task.name, task.loaded.task.version);
    for (const auto& metric : task.loaded.task.metrics) {
      add_row(rows, name, version ? fmt::format("{:.1f}", *version) : "-",
              fmt::format("{}", task.loaded.shots), task.questions(), metric.key(),
              task.metrics.at(metric.key()));
    }
  }
  for (const auto& [group, mean, questions] : report.groups) {
    add_row(rows, "(" + group.name + ")", group.version == "N/A" ? "-" : group.version, "",
            questions, group.metric, mean);
  }
  return rows;
}

bool is_number(size_t column) { return column != 0 && column != 4; }

}  // namespace

std::string results_table(const RunReport& report) {
  const std::vector<Row> rows = table_rows(report);
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      line += column == 0 ? "" : "  ";
      line += is_number(column) ? fmt::format("{:>{}}", row[column], widths[column])
                                : fmt::format("{:<{}}", row[column], widths[column]);
    }
    table += line + "\n";
  }
  for (const auto& paper : report.papers) {
    table += "\n" + to_text(paper);
  }
  return report.against.empty() ? table : table + "\n" + to_table(report.against);
}

}  // namespace moe::eval
