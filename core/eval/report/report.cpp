// A run in numbers: means of groups and papers, the table for people, the files.
#include "core/eval/report/report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/report/output_files.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::eval {
namespace {

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

std::filesystem::path samples_file(const std::filesystem::path& out, const Task& task) {
  return out / fmt::format("samples_{}.jsonl", task.name);
}

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

std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks) {
  std::vector<std::filesystem::path> files = {out / "results.json"};
  for (const auto& loaded : tasks) {
    files.push_back(samples_file(out, loaded.task));
  }
  return files;
}

void write_report(const RunReport& report, const std::filesystem::path& out) {
  std::error_code failure;
  std::filesystem::create_directories(out, failure);
  if (failure) {
    throw UserError("-o {}: cannot be made: {}", out.string(), failure.message());
  }
  std::vector<std::string> names = {"results.json"};
  for (const auto& task : report.tasks) {
    names.push_back(samples_file(out, task.loaded.task).filename().string());
  }
  io::add_to_output_list(out, names);
  for (const auto& task : report.tasks) {
    io::write_whole(samples_file(out, task.loaded.task), samples_jsonl(task));
  }
  io::write_whole(out / "results.json", results_json(report).dump(2) + "\n");
}

}  // namespace moe::eval
