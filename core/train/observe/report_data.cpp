#include "core/train/observe/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/train/observe/panels.h"

namespace moe::train {

namespace {

const Downsampled* find(const History& history, const std::string& name) {
  const auto place = history.curves().find(name);
  return place == history.curves().end() || place->second.empty() ? nullptr : &place->second;
}

void add_loss(const History& history, std::vector<Panel>& panels) {
  Panel panel{kLossGroup, "Loss", "nats per target token", 1, false, true, {}};
  for (const auto& [name, curve] : {std::pair("training", "loss"), {"held out", "held_out_loss"}}) {
    if (const Downsampled* found = find(history, curve)) {
      panel.lines.push_back({name, found});
    }
  }
  if (!panel.lines.empty()) {
    panels.push_back(std::move(panel));
  }
}

// A line a task.
void add_accuracy(const History& history, std::vector<Panel>& panels) {
  Panel panel{kLearningGroup, "Accuracy", "% of questions", 100, false, false, {}};
  for (const auto& [name, curve] : history.curves()) {
    if (const std::string task = task_of_curve(name); !task.empty()) {
      panel.lines.push_back({task, &curve});
    }
  }
  if (!panel.lines.empty()) {
    panels.push_back(std::move(panel));
  }
}

// Five significant digits: what a screen can show.
double rounded(double value) { return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr); }

OrderedJson steps_of(const std::vector<Point>& points) {
  OrderedJson steps = OrderedJson::array();
  for (const auto& point : points) {
    steps.push_back(point.step);
  }
  return steps;
}

OrderedJson values_of(const std::vector<Point>& points, double scale) {
  OrderedJson values = OrderedJson::array();
  for (const auto& point : points) {
    values.push_back(rounded(point.value * scale));
  }
  return values;
}

// A page of many curves, as of a run that is scored on hundreds of tasks, has fewer points of each:
// at some 15 bytes a point all of them together take about 1 MB.
size_t points_per_curve(const std::vector<Panel>& panels) {
  constexpr size_t kAllPoints = 60'000, kFewest = 50;
  size_t curves = 0;
  for (const auto& panel : panels) {
    curves += panel.lines.size();
  }
  return std::clamp(kAllPoints / std::max<size_t>(1, curves), kFewest, Downsampled::kMostPoints);
}

OrderedJson line_json(const Panel& panel, const PanelLine& line, size_t most_points) {
  const std::vector<Point> points = line.curve->points(most_points);
  OrderedJson json = {
      {"name", line.name}, {"steps", steps_of(points)}, {"values", values_of(points, panel.scale)}};
  const bool is_main = &line == &panel.lines.front();
  const std::vector<Point> smooth =
      panel.is_smoothed && is_main ? smoothed(line.curve->means()) : std::vector<Point>();
  if (!smooth.empty()) {
    json["smooth"] = {{"steps", steps_of(smooth)}, {"values", values_of(smooth, panel.scale)}};
  }
  return json;
}

OrderedJson map_json(const LoadMap& map, size_t layer) {
  OrderedJson loads = OrderedJson::array();
  const LayerLoad& shape = map.columns().front().loads[layer];
  for (const auto& column : map.columns()) {
    for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
      loads.push_back(std::lround(100 * relative_load(column.loads[layer], expert)));
    }
  }
  return {{"layer", shape.layer}, {"experts", shape.rows.size()}, {"loads", loads}};
}

}  // namespace

std::vector<Panel> panels_of(const History& history, std::vector<std::string>* zero) {
  std::vector<Panel> panels;
  add_loss(history, panels);
  add_accuracy(history, panels);
  for (const auto& known : known_panels()) {
    // Elsewhere sparsity only says again what experts per token does.
    const bool is_told_twice =
        known.curve == std::string_view("sparsity") && find(history, "lambda") == nullptr;
    const Downsampled* curve = is_told_twice ? nullptr : find(history, known.curve);
    const bool is_routing = std::string_view(known.group) == kRoutingGroup;
    if (curve != nullptr && is_routing && curve->least.value == 0 && curve->largest.value == 0) {
      if (zero != nullptr) {
        zero->push_back(known.title);
      }
    } else if (curve != nullptr) {
      panels.push_back({known.group,
                        known.title,
                        known.unit,
                        known.scale,
                        known.from_zero,
                        known.is_smoothed,
                        {{"", curve}}});
    }
  }
  return panels;
}

std::vector<Point> smoothed(const std::vector<Point>& points) {
  constexpr int64_t kFewest = 20, kReach = 30;  // reach: a thirtieth of the curve to each side
  const auto count = std::ssize(points);
  if (count < kFewest) {
    return {};
  }
  const auto reach = std::max<int64_t>(1, count / kReach);
  std::vector<Point> smooth;
  for (int64_t here = 0; here < count; ++here) {
    const int64_t near =
        std::min({reach, here, count - 1 - here});  // symmetric: no lag at the ends
    double sum = 0, weights = 0;
    for (int64_t at = here - near; at <= here + near; ++at) {
      const double weight = static_cast<double>(near + 1 - std::abs(at - here));
      sum += weight * points[static_cast<size_t>(at)].value;
      weights += weight;
    }
    smooth.push_back({points[static_cast<size_t>(here)].step, sum / weights});
  }
  return smooth;
}

OrderedJson report_data(const History& history, std::optional<double> clip) {
  OrderedJson data = {{"panels", OrderedJson::array()},
                      {"columns", OrderedJson::array()},
                      {"maps", OrderedJson::array()}};
  const std::vector<Panel> panels = panels_of(history);
  const size_t most_points = points_per_curve(panels);
  for (const auto& panel : panels) {
    OrderedJson json = {{"group", panel.group},
                        {"title", panel.title},
                        {"unit", panel.unit},
                        {"zero", panel.from_zero},
                        {"lines", OrderedJson::array()}};
    for (const auto& line : panel.lines) {
      json["lines"].push_back(line_json(panel, line, most_points));
    }
    if (clip && *clip > 0 && panel.title == "Gradient norm") {
      json["rule"] = {{"name", "clip"}, {"value", *clip}};
    }
    data["panels"].push_back(json);
  }
  if (!history.loads().empty()) {
    for (const auto& column : history.loads().columns()) {
      data["columns"].push_back({column.begin, column.end});
    }
    for (size_t layer = 0; layer < history.loads().columns().front().loads.size(); ++layer) {
      data["maps"].push_back(map_json(history.loads(), layer));
    }
  }
  return data;
}

}  // namespace moe::train
