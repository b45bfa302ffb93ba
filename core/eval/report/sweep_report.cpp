#include "core/eval/report/sweep_report.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/version.h"

namespace moe::eval {
namespace {

using Line = std::vector<std::string>;

std::string head_of(const SweepColumn& column) {
  return column.metric == "acc" ? column.name : column.name + " " + column.metric;
}

// Every line as wide as the widest: names to the left, numbers to the right.
std::string aligned(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const auto& line : lines) {
    for (size_t column = 0; column < line.size(); ++column) {
      widths[column] = std::max(widths[column], line[column].size());
    }
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t column = 0; column < line.size(); ++column) {
      row += column == 0 ? fmt::format("{:<{}}", line[column], widths[column])
                         : fmt::format("  {:>{}}", line[column], widths[column]);
    }
    text += row + "\n";
  }
  return text;
}

int64_t questions_of(const SweepReport& report) {
  int64_t questions = 0;
  for (const auto& column : report.columns) {
    questions += column.questions;
  }
  return questions;
}

OrderedJson row_json(const SweepReport& report, const SweepRow& row) {
  OrderedJson json = {{"value", row.value.name}};
  for (size_t i = 0; i < report.axes.size(); ++i) {
    json[report.axes[i].setting] = row.value.of_axis[i];
  }
  json["resolved_router"] = route::to_string(row.value.routing.router);
  json["resolved_ep_ranks"] = row.value.routing.ep_ranks;
  for (size_t i = 0; i < report.columns.size(); ++i) {
    const auto& error = row.means[i].standard_error;
    json["results"][report.columns[i].name] = {
        {"metric", report.columns[i].metric},
        {"value", row.means[i].value},
        {"stderr", error ? OrderedJson(*error) : OrderedJson("N/A")},
        {"n", report.columns[i].questions}};
  }
  json["average"] = row.average;
  json["drop_rate"] = row.drop_rate;
  json["experts_per_token"] = row.experts_per_token;
  json["ir_share"] = row.ir_share;
  json["seconds"] = row.seconds;
  return json;
}

}  // namespace

std::string sweep_table(const SweepReport& report) {
  std::vector<Line> lines = {{"value"}};
  for (const auto& column : report.columns) {
    lines[0].push_back(head_of(column));
  }
  const bool has_average = report.columns.size() > 1;
  for (const auto& [head, stands] : {std::pair("average", has_average),
                                     {"drop %", report.has_drops},
                                     {"IR %", report.has_ir},
                                     {"rows/token", true},
                                     {"n", true}}) {
    if (stands) {
      lines[0].emplace_back(head);
    }
  }
  for (const auto& row : report.rows) {
    Line line = {row.value.name};
    for (const auto& mean : row.means) {
      line.push_back(fmt::format("{:.4f}", mean.value));
    }
    if (has_average) {
      line.push_back(fmt::format("{:.4f}", row.average));
    }
    if (report.has_drops) {
      line.push_back(fmt::format("{:.2f}", 100 * row.drop_rate));
    }
    if (report.has_ir) {
      line.push_back(fmt::format("{:.2f}", 100 * row.ir_share));
    }
    line.push_back(fmt::format("{:.3f}", row.experts_per_token));
    line.push_back(fmt::format("{}", questions_of(report)));
    lines.push_back(std::move(line));
  }
  return aligned(lines);
}

std::string sweep_bars(const SweepReport& report, size_t columns) {
  size_t name_width = 0;
  double least = report.rows.front().average, largest = least;
  for (const auto& row : report.rows) {
    name_width = std::max(name_width, row.value.name.size());
    least = std::min(least, row.average);
    largest = std::max(largest, row.average);
  }
  constexpr size_t kNumberWidth = 10;  // "  0.1234 |"
  const size_t room = std::clamp<size_t>(
      columns > name_width + kNumberWidth + 1 ? columns - name_width - kNumberWidth - 1 : 0, 8, 60);
  std::string text = fmt::format(
      "{}, bars from {:.4f} to {:.4f}\n",
      report.columns.size() > 1 ? "average" : head_of(report.columns.front()), least, largest);
  for (const auto& row : report.rows) {
    const double share = largest > least ? (row.average - least) / (largest - least) : 1;
    text += fmt::format(
        "{:<{}}  {:.4f} |{}\n", row.value.name, name_width, row.average,
        std::string(1 + static_cast<size_t>(share * static_cast<double>(room - 1)), '='));
  }
  return text;
}

OrderedJson sweep_json(const SweepReport& report) {
  OrderedJson json = {{"version", kVersion}, {"model", report.model}};
  for (const auto& axis : report.axes) {
    json["sweep"][axis.setting] = axis.values;
  }
  json["values"] = OrderedJson::array();
  for (const auto& row : report.rows) {
    json["values"].push_back(row_json(report, row));
  }
  return json;
}

}  // namespace moe::eval
