#include "core/eval/report/sweep_report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/page/page.h"
#include "core/base/version.h"
#include "core/eval/report/task_report.h"

namespace moe::eval {
namespace {

OrderedJson row_json(const SweepReport& report, const SweepRow& row) {
  OrderedJson json = {{"value", row.value.name}};
  for (size_t i = 0; i < report.axes.size(); ++i) {
    json[report.axes[i].setting] = row.value.axis_values[i];
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

struct Panel {
  std::string title, head;  // title on the page; column header in the table
  int decimals = 4;         // in the table
  std::vector<double> values;
  std::vector<double> errors = {};  // standard errors; may be empty
};

Panel column_panel(const SweepReport& report, size_t column) {
  const auto& [name, metric, questions] = report.columns[column];
  Panel panel{name + ", " + metric, metric == "acc" ? name : name + " " + metric, 4, {}};
  for (const auto& row : report.rows) {
    panel.values.push_back(row.means[column].value);
    panel.errors.push_back(row.means[column].standard_error.value_or(0));
  }
  return panel;
}

// Returns panels: tasks and groups, their average (first if average_first), routing statistics.
std::vector<Panel> make_panels(const SweepReport& report, bool average_first) {
  std::vector<Panel> panels;
  const auto add = [&](const char* title, const char* head, int decimals, auto&& value) {
    Panel panel{title, head, decimals, {}};
    for (const auto& row : report.rows) {
      panel.values.push_back(value(row));
    }
    panels.push_back(std::move(panel));
  };
  const auto has = [&](double SweepRow::*share) {
    return std::ranges::any_of(report.rows, [&](const auto& row) { return row.*share > 0; });
  };
  for (size_t i = 0; i < report.columns.size(); ++i) {
    panels.push_back(column_panel(report, i));
  }
  if (report.columns.size() > 1) {
    add("average", "average", 4, [](const auto& row) { return row.average; });
    if (average_first) {
      std::rotate(panels.begin(), panels.end() - 1, panels.end());
    }
  }
  if (has(&SweepRow::drop_rate)) {
    add("requests dropped, %", "drop %", 2, [](const auto& row) { return 100 * row.drop_rate; });
  }
  if (has(&SweepRow::ir_share)) {
    add("IR tokens, %", "IR %", 2, [](const auto& row) { return 100 * row.ir_share; });
  }
  add("rows per token", "rows/token", 3, [](const auto& row) { return row.experts_per_token; });
  return panels;
}

// Lines of a plot over the first axis with numbers (x): one per combination of the other axes.
struct Lines {
  size_t axis = 0;                 // index of the x axis
  std::vector<std::string> ticks;  // on the x axis; numbers ascend, inf is last
  // Names of the lines in order of appearance, each with its rows in the order of the ticks.
  std::vector<std::pair<std::string, std::vector<size_t>>> rows;
};

Lines make_lines(const SweepReport& report) {
  Lines lines;
  const auto number = std::ranges::find_if(report.axes, &SweepAxis::is_number);
  lines.axis = number == report.axes.end() ? 0 : static_cast<size_t>(number - report.axes.begin());
  lines.ticks = report.axes[lines.axis].values;
  if (report.axes[lines.axis].is_number()) {
    std::ranges::stable_sort(lines.ticks, [](const auto& a, const auto& b) {
      return std::strtod(a.c_str(), nullptr) < std::strtod(b.c_str(), nullptr);
    });
  }
  for (const auto& value : lines.ticks) {
    for (size_t row = 0; row < report.rows.size(); ++row) {
      const auto& point = report.rows[row].value.axis_values;
      if (point[lines.axis] != value) {
        continue;
      }
      std::string name;
      for (size_t i = 0; i < point.size(); ++i) {
        name += i == lines.axis ? "" : (name.empty() ? "" : " ") + point[i];
      }
      auto line =
          std::ranges::find(lines.rows, name, [](const auto& entry) { return entry.first; });
      line = line != lines.rows.end() ? line : lines.rows.insert(line, {name, {}});
      line->second.push_back(row);
    }
  }
  return lines;
}

OrderedJson series_json(const SweepReport& report, const Panel& panel, const Lines& lines,
                        const std::string& name, const std::vector<size_t>& rows) {
  OrderedJson x = OrderedJson::array(), y = x, low = x, high = x;
  for (const size_t row : rows) {
    const auto& value = report.rows[row].value.axis_values[lines.axis];
    x.push_back(std::ranges::find(lines.ticks, value) - lines.ticks.begin());
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
  const Lines lines = make_lines(report);
  const SweepAxis& axis = report.axes[lines.axis];
  const char* kind = axis.is_number() ? "lines" : "bars";
  OrderedJson panels = OrderedJson::array();
  for (const auto& panel : make_panels(report, /*average_first=*/true)) {
    OrderedJson series = OrderedJson::array();
    for (const auto& [name, rows] : lines.rows) {
      series.push_back(series_json(report, panel, lines, name, rows));
    }
    panels.push_back({{"kind", kind}, {"title", panel.title}, {"series", series}});
  }
  return {{"title", ""},
          {"note", "x axis: " + axis.setting + "; error bars: standard error"},
          {"x", {{"label", axis.setting}, {"names", lines.ticks}}},
          {"panels", panels}};
}

OrderedJson table(const SweepReport& report) {
  OrderedJson columns = OrderedJson::array(), rows = columns, tables = columns;
  columns.push_back("value");
  const std::vector<Panel> panels = make_panels(report, /*average_first=*/true);
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
  return {{"id", "numbers"}, {"title", "Table"}, {"panels", tables}};
}

}  // namespace

std::string sweep_table(const SweepReport& report) {
  const std::vector<Panel> panels = make_panels(report, /*average_first=*/false);
  int64_t questions = 0;
  for (const auto& column : report.columns) {
    questions += column.questions;
  }
  std::vector<std::vector<std::string>> lines = {{"value"}};
  for (const auto& panel : panels) {
    lines[0].push_back(panel.head);
  }
  lines[0].emplace_back("n");
  for (size_t row = 0; row < report.rows.size(); ++row) {
    auto& line = lines.emplace_back(1, report.rows[row].value.name);
    for (const auto& panel : panels) {
      line.push_back(fmt::format("{:.{}f}", panel.values[row], panel.decimals));
    }
    line.push_back(std::to_string(questions));
  }
  return align_columns(lines, /*left_columns=*/{0});
}

std::string sweep_bars(const SweepReport& report, size_t columns) {
  size_t name_width = 0;
  double min = report.rows.front().average, max = min;
  for (const auto& row : report.rows) {
    name_width = std::max(name_width, row.value.name.size());
    min = std::min(min, row.average);
    max = std::max(max, row.average);
  }
  constexpr size_t kNumberWidth = 10;  // "  0.1234 |"
  const size_t bar_width = std::clamp<size_t>(
      columns > name_width + kNumberWidth + 1 ? columns - name_width - kNumberWidth - 1 : 0, 8, 60);
  std::string text =
      fmt::format("{}, bars from {:.4f} to {:.4f}\n",
                  report.columns.size() > 1 ? "average" : column_panel(report, 0).head, min, max);
  for (const auto& row : report.rows) {
    const double share = max > min ? (row.average - min) / (max - min) : 1;
    text += fmt::format("{:<{}}  {:.4f} |{}\n", row.value.name, name_width, row.average,
                        std::string(1 + static_cast<size_t>(share * (bar_width - 1)), '='));
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
