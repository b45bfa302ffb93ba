#include "core/eval/report/sweep_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/page/page.h"
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

// A sweep as one page (core/base/page/page.h): a panel for the average, each task and each share,
// then the table of the same numbers.

namespace {

// What one panel shows: a number a row of the sweep.
struct Panel {
  std::string title;
  std::vector<double> values;
  std::vector<double> errors = {};  // standard errors; empty where there are none
};

std::vector<Panel> panels_of(const SweepReport& report) {
  const auto of_rows = [&](auto&& value) {
    std::vector<double> values;
    for (const auto& row : report.rows) {
      values.push_back(value(row));
    }
    return values;
  };
  std::vector<Panel> panels;
  if (report.columns.size() > 1) {
    panels.push_back({"average", of_rows([](const auto& row) { return row.average; })});
  }
  for (size_t i = 0; i < report.columns.size(); ++i) {
    panels.push_back(
        {report.columns[i].name + ", " + report.columns[i].metric,
         of_rows([&](const auto& row) { return row.means[i].value; }),
         of_rows([&](const auto& row) { return row.means[i].standard_error.value_or(0); })});
  }
  if (report.has_drops) {
    panels.push_back(
        {"requests dropped, %", of_rows([](const auto& row) { return 100 * row.drop_rate; })});
  }
  if (report.has_ir) {
    panels.push_back({"IR tokens, %", of_rows([](const auto& row) { return 100 * row.ir_share; })});
  }
  panels.push_back(
      {"rows per token", of_rows([](const auto& row) { return row.experts_per_token; })});
  return panels;
}

// Where each row stands: the first axis of numbers runs to the right, else the first one; the
// values of the others make lines.
struct Lines {
  size_t axis = 0;
  std::vector<std::string> places;                          // from left to right
  std::map<std::string, std::vector<size_t>> rows_of_line;  // in order of place
  std::vector<std::string> names;                           // of the lines, in order of appearance
};

// Numbers ascend; inf stands last.
std::vector<std::string> places_of(const SweepAxis& axis) {
  std::vector<std::string> places = axis.values;
  if (axis.is_number()) {
    std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
      return std::strtod(a.c_str(), nullptr) < std::strtod(b.c_str(), nullptr);
    });
  }
  return places;
}

Lines lines_of(const SweepReport& report) {
  Lines lines;
  const auto number = std::find_if(report.axes.begin(), report.axes.end(),
                                   [](const auto& axis) { return axis.is_number(); });
  lines.axis = number == report.axes.end() ? 0 : static_cast<size_t>(number - report.axes.begin());
  lines.places = places_of(report.axes[lines.axis]);
  for (const auto& value : lines.places) {
    for (size_t row = 0; row < report.rows.size(); ++row) {
      const auto& point = report.rows[row].value.of_axis;
      if (point[lines.axis] != value) {
        continue;
      }
      std::string name;
      for (size_t i = 0; i < point.size(); ++i) {
        name += i == lines.axis ? "" : (name.empty() ? "" : " ") + point[i];
      }
      if (!lines.rows_of_line.contains(name)) {
        lines.names.push_back(name);
      }
      lines.rows_of_line[name].push_back(row);
    }
  }
  return lines;
}

OrderedJson series_json(const SweepReport& report, const Panel& panel, const Lines& lines,
                        const std::string& name) {
  OrderedJson x = OrderedJson::array(), y = x, low = x, high = x;
  for (const size_t row : lines.rows_of_line.at(name)) {
    const auto& value = report.rows[row].value.of_axis[lines.axis];
    x.push_back(std::find(lines.places.begin(), lines.places.end(), value) - lines.places.begin());
    const double error = panel.errors.empty() ? 0 : panel.errors[row];
    y.push_back(panel.values[row]);
    low.push_back(panel.values[row] - error);
    high.push_back(panel.values[row] + error);
  }
  OrderedJson json = {{"name", name}, {"x", x}, {"y", y}, {"is_marked", true}};
  if (!panel.errors.empty()) {
    json["low"] = low;
    json["high"] = high;
  }
  return json;
}

OrderedJson plots(const SweepReport& report) {
  const Lines lines = lines_of(report);
  const SweepAxis& axis = report.axes[lines.axis];
  const char* kind = axis.is_number() ? "lines" : "bars";  // routers have no order
  OrderedJson panels = OrderedJson::array();
  for (const auto& panel : panels_of(report)) {
    OrderedJson series = OrderedJson::array();
    for (const auto& name : lines.names) {
      series.push_back(series_json(report, panel, lines, name));
    }
    panels.push_back({{"kind", kind}, {"title", panel.title}, {"series", series}});
  }
  return {{"title", ""},
          {"note", axis.setting + " runs to the right; thin bars are standard errors"},
          {"x", {{"label", axis.setting}, {"names", lines.places}}},
          {"panels", panels}};
}

OrderedJson table(const SweepReport& report) {
  OrderedJson columns = OrderedJson::array(), rows = columns, tables = columns;
  columns.push_back("value");
  const std::vector<Panel> panels = panels_of(report);
  for (const auto& panel : panels) {
    columns.push_back(panel.title);
  }
  for (size_t row = 0; row < report.rows.size(); ++row) {
    OrderedJson cells = OrderedJson::array();
    for (const auto& panel : panels) {
      cells.push_back(fmt::format("{:.4f}", panel.values[row]));
    }
    rows.push_back({{"name", report.rows[row].value.name}, {"cells", cells}});
  }
  tables.push_back({{"kind", "table"}, {"columns", columns}, {"rows", rows}});
  return {{"id", "numbers"}, {"title", "In numbers"}, {"panels", tables}};
}

}  // namespace

std::string sweep_page(const SweepReport& report) {
  std::string settings;
  for (const auto& axis : report.axes) {
    settings += (settings.empty() ? "" : ", ") + axis.setting;
  }
  OrderedJson sections = OrderedJson::array();
  sections.push_back(plots(report));
  sections.push_back(table(report));
  return make_page({{"program", "moe eval --sweep"},
                    {"state", settings},
                    {"title", report.model},
                    {"sections", std::move(sections)}});
}

}  // namespace moe::eval
