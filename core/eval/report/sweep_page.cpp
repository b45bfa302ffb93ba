// A sweep as one page: a panel for the average, each task and each share, then the table. Plain SVG
// that the browser colours; nothing is fetched and no script runs.
#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/error.h"
#include "core/base/html.h"
#include "core/eval/report/sweep_report.h"

namespace moe::eval {
namespace {

// Colours and measures of a training report (core/train/observe/report.css), which have room for
// six lines.
constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>
:root {
  --page: #faf9f7; --surface: #ffffff; --ink: #1d1e20; --muted: #5c6067; --rule: #e4e2dd; --grid: #eeece8;
  --c0: #2b66a8; --c1: #b4540a; --c2: #2c7a4b; --c3: #7a4bb0; --c4: #0f7480; --c5: #b03259;
}
@media (prefers-color-scheme: dark) { :root {
  --page: #131416; --surface: #1a1c1f; --ink: #e9e8e5; --muted: #a2a6ad; --rule: #2e3136; --grid: #26292d;
  --c0: #7fb3ee; --c1: #f0a561; --c2: #7fcd9b; --c3: #c1a3f1; --c4: #6ccdd6; --c5: #f08ca8;
} }
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1320px; padding: clamp(20px, 4vw, 56px) clamp(16px, 4vw, 56px);
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1, p, figure { margin: 0; }
h1 { font-size: clamp(26px, 4vw, 38px); line-height: 1.15; font-weight: 620; overflow-wrap: anywhere; }
.over, .key { color: var(--muted); font-size: 13px; margin-bottom: 6px; overflow-wrap: anywhere; }
.key { margin: 24px 0 0; }
.key i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin: 0 5px 0 12px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); gap: 16px; margin: 16px 0 36px; }
.panel, .scroll { background: var(--surface); border: 1px solid var(--rule); border-radius: 10px; }
.panel { padding: 14px 16px 10px; min-width: 0; break-inside: avoid; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--muted); font-size: 11px; }
.grid { stroke: var(--grid); }
.error { stroke-opacity: 0.45; }
.line { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 16px; text-align: right; white-space: nowrap; font-weight: 400; border-top: 1px solid var(--grid); }
thead th { color: var(--muted); font-size: 13px; border-top: 0; }
th:first-child { text-align: left; }
@media print { body { padding: 0; max-width: none; } }
</style>
)";

constexpr double kWidth = 400, kHeight = 210, kLeft = 52, kRight = 14, kTop = 12, kBottom = 30;
constexpr int kColours = 6;

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
  for (const auto& place : lines.places) {
    for (size_t row = 0; row < report.rows.size(); ++row) {
      const auto& point = report.rows[row].value.of_axis;
      if (point[lines.axis] != place) {
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

// A panel's axis: from `low` to `high` with a line at every multiple of `step`.
struct Scale {
  double low, high, step;
  double y(double value) const {
    return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom);
  }
};

// 1, 2 or 5 times a power of ten, so that about four lines stand in `range`.
double step_in(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 4)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= 0.999 * range / 4) {
      return times * power;
    }
  }
  return 10 * power;
}

Scale scale_of(const Panel& panel) {
  double low = panel.values.front(), high = low;
  for (size_t i = 0; i < panel.values.size(); ++i) {
    const double error = panel.errors.empty() ? 0 : panel.errors[i];
    low = std::min(low, panel.values[i] - error);
    high = std::max(high, panel.values[i] + error);
  }
  const double room = high > low ? 0.08 * (high - low) : std::max(0.05 * std::abs(high), 0.01);
  const double bottom = low >= 0 ? std::max(0.0, low - room) : low - room;
  return {bottom, high + room, step_in(high + room - bottom)};
}

double x_of(size_t place, size_t places) {
  return places == 1 ? (kLeft + kWidth - kRight) / 2
                     : kLeft + 10 +
                           static_cast<double>(place) / static_cast<double>(places - 1) *
                               (kWidth - kLeft - kRight - 20);
}

std::string axes_svg(const Scale& scale, const std::vector<std::string>& places) {
  std::string svg;
  const double first = std::ceil(scale.low / scale.step - 1e-9);
  for (double tick = first; tick * scale.step <= scale.high + 1e-9 * scale.step; ++tick) {
    const double value = tick * scale.step;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        kLeft, kWidth - kRight, scale.y(value), kLeft - 6, scale.y(value) + 4,
        value + 0.0);  // never -0
  }
  // Long names would run into each other: two heights, and at most one name in `step`.
  const size_t step = (places.size() + 7) / 8;
  for (size_t i = 0; i < places.size(); i += step) {
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x_of(i, places.size()),
        kHeight - (places[i].size() > 8 && i / step % 2 == 1 ? 2 : 14), html(places[i]));
  }
  return svg;
}

std::string line_svg(const SweepReport& report, const Panel& panel, const Lines& lines,
                     size_t number, const Scale& scale) {
  const auto& rows = lines.rows_of_line.at(lines.names[number]);
  const std::string colour = fmt::format("var(--c{})", number % kColours);
  std::string path, marks;
  for (const size_t row : rows) {
    const auto place = std::find(lines.places.begin(), lines.places.end(),
                                 report.rows[row].value.of_axis[lines.axis]) -
                       lines.places.begin();
    const double x = x_of(static_cast<size_t>(place), lines.places.size());
    const double value = panel.values[row], error = panel.errors.empty() ? 0 : panel.errors[row];
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, scale.y(value));
    if (error > 0) {
      marks += fmt::format(
          "<line class=\"error\" style=\"stroke: {0}\" x1=\"{1:.1f}\" x2=\"{1:.1f}\" "
          "y1=\"{2:.1f}\" y2=\"{3:.1f}\"/>",
          colour, x, scale.y(value - error), scale.y(value + error));
    }
    marks += fmt::format(
        "<circle r=\"3.2\" cx=\"{:.1f}\" cy=\"{:.1f}\" style=\"fill: {}\"><title>{}: "
        "{:.4f}{}</title></circle>\n",
        x, scale.y(value), colour, html(report.rows[row].value.name), value,
        error > 0 ? fmt::format(" \u00b1 {:.4f}", error) : "");
  }
  return fmt::format("<path class=\"line\" style=\"stroke: {}\" d=\"{}\"/>\n{}", colour, path,
                     marks);
}

std::string panel_html(const SweepReport& report, const Panel& panel, const Lines& lines) {
  const Scale scale = scale_of(panel);
  std::string svg = axes_svg(scale, lines.places);
  for (size_t line = 0; line < lines.names.size(); ++line) {
    svg += line_svg(report, panel, lines, line, scale);
  }
  return fmt::format(
      "<figure class=\"panel\"><figcaption>{0}</figcaption>\n<svg role=\"img\" aria-label=\"{0} "
      "over {1}\" viewBox=\"0 0 {2} {3}\">\n{4}</svg></figure>\n",
      html(panel.title), html(report.axes[lines.axis].setting), kWidth, kHeight, svg);
}

std::string key_html(const SweepReport& report, const Lines& lines) {
  std::string key = html(report.axes[lines.axis].setting) + " runs to the right";
  if (report.axes.size() > 1) {
    for (size_t line = 0; line < lines.names.size(); ++line) {
      key += fmt::format("<i style=\"background: var(--c{})\"></i>{}", line % kColours,
                         html(lines.names[line]));
    }
  }
  return "<p class=\"key\">" + key + "; thin bars are standard errors</p>\n";
}

std::string table_html(const SweepReport& report) {
  const std::vector<Panel> panels = panels_of(report);
  std::string head = "<tr><th scope=\"col\">value</th>", body;
  for (const auto& panel : panels) {
    head += "<th scope=\"col\">" + html(panel.title) + "</th>";
  }
  for (size_t row = 0; row < report.rows.size(); ++row) {
    body += "<tr><th scope=\"row\">" + html(report.rows[row].value.name) + "</th>";
    for (const auto& panel : panels) {
      body += fmt::format("<td>{:.4f}</td>", panel.values[row]);
    }
    body += "</tr>\n";
  }
  return "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead>" + head + "</tr></thead>\n<tbody>" +
         body + "</tbody></table></div>\n";
}

}  // namespace

std::string sweep_page(const SweepReport& report) {
  const Lines lines = lines_of(report);
  std::string panels;
  for (const auto& panel : panels_of(report)) {
    panels += panel_html(report, panel, lines);
  }
  std::string settings;
  for (const auto& axis : report.axes) {
    settings += (settings.empty() ? "" : ", ") + axis.setting;
  }
  return fmt::format(
      "{}<title>{} - moe eval --sweep</title>\n</head>\n<body>\n<p class=\"over\">moe eval "
      "--sweep {}</p>\n<h1>{}</h1>\n{}<div class=\"panels\">\n{}</div>\n{}</body>\n</html>\n",
      kHead, html(report.model), html(settings), html(report.model), key_html(report, lines),
      panels, table_html(report));
}

}  // namespace moe::eval
