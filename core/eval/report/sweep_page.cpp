// A sweep as one page (core/base/page/page.h): a panel for the average, each task and each share,
// then the table of the same numbers.
#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/page/page.h"
#include "core/eval/report/sweep_report.h"

namespace moe::eval {
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
