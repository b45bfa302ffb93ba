#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/page/page.h"
#include "core/train/observe/report.h"

namespace moe::train {

namespace {

void add_loss(const History& history, std::vector<Panel>& panels) {
  Panel panel{{kLossGroup, "Loss", "nats per target token", "loss", 1, false, true, true}, {}};
  if (const Downsampled* training = history.find_curve("loss")) {
    panel.lines.push_back({"training", training});
  }
  if (const Downsampled* held_out = history.find_curve("held_out_loss")) {
    panel.lines.push_back({"held out", held_out, !panel.lines.empty()});
  }
  if (!panel.lines.empty()) {
    panels.push_back(std::move(panel));
  }
}

void add_accuracy(const History& history, std::vector<Panel>& panels) {
  Panel panel{{kLearningGroup, "Accuracy", "% of questions", "", 100}, {}};
  for (const auto& [name, curve] : history.curves()) {
    if (const std::string task = task_name(name); !task.empty()) {
      panel.lines.push_back({task, &curve, true});
    }
  }
  if (!panel.lines.empty()) {
    panels.push_back(std::move(panel));
  }
}

OrderedJson points_json(const std::vector<Point>& points, double scale) {
  OrderedJson steps = OrderedJson::array(), values = OrderedJson::array();
  for (const auto& point : points) {
    steps.push_back(point.step);
    values.push_back(round_for_screen(point.value * scale));
  }
  return {{"x", steps}, {"y", values}};
}

// Returns fewer points per curve for a page with many curves, as of a run with hundreds of tasks:
// at about 15 bytes a point all curves take 1 MB.
size_t points_per_curve(const std::vector<Panel>& panels) {
  constexpr size_t kAllPoints = 60'000, kFewest = 50;
  size_t curves = 0;
  for (const auto& panel : panels) {
    curves += panel.lines.size();
  }
  return std::clamp(kAllPoints / std::max<size_t>(1, curves), kFewest, Downsampled::kMaxPoints);
}

OrderedJson series_json(const Panel& panel, const PanelLine& line, size_t max_points) {
  const double scale = panel.spec.scale;
  OrderedJson json = {{"name", line.name}};
  json.update(points_json(line.curve->points(max_points), scale));
  if (line.is_marked) {
    json["is_marked"] = true;
  } else if (panel.spec.is_smoothed) {
    if (const auto smooth = smoothed(line.curve->means()); !smooth.empty()) {
      json["smooth"] = points_json(smooth, scale);
    }
  }
  return json;
}

OrderedJson panel_json(const Panel& panel, const CurveSettings& settings, size_t max_points) {
  OrderedJson json = {{"kind", "lines"},
                      {"title", panel.spec.title},
                      {"subtitle", panel.spec.unit},
                      {"is_wide", panel.spec.group == std::string_view(kLossGroup)},
                      {"y", {{"from_zero", panel.spec.from_zero}}},
                      {"series", OrderedJson::array()}};
  if (panel.spec.is_loss) {
    json["y"]["log"] = false;
    if (settings.warmup && *settings.warmup > 0) {
      json["start"] = {{"name", "warm-up"}, {"x", std::llround(std::min(*settings.warmup, 1e15))}};
    }
  }
  if (settings.clip && *settings.clip > 0 && panel.spec.curve == std::string_view("grad_norm")) {
    json["rule"] = {{"name", "clip"}, {"value", *settings.clip}};
  }
  for (const auto& line : panel.lines) {
    json["series"].push_back(series_json(panel, line, max_points));
  }
  return json;
}

OrderedJson map_json(const LoadMap& map, size_t layer) {
  const LayerLoad& shape = map.columns().front().loads[layer];
  OrderedJson names = OrderedJson::array(), values = OrderedJson::array();
  for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
    names.push_back(fmt::format("{}", expert));
  }
  for (const auto& column : map.columns()) {
    for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
      values.push_back(std::lround(100 * relative_load(column.loads[layer], expert)));
    }
  }
  return {{"kind", "heat map"},
          {"title", fmt::format("Layer {}", shape.layer)},
          {"subtitle", fmt::format("{} experts, one a row", shape.rows.size())},
          {"y", {{"label", "expert"}, {"names", names}}},
          {"values", values}};
}

OrderedJson maps_section(const LoadMap& map) {
  OrderedJson ranges = OrderedJson::array(), panels = OrderedJson::array();
  for (const auto& column : map.columns()) {
    ranges.push_back({column.begin, column.end});
  }
  for (size_t layer = 0; layer < map.columns().front().loads.size(); ++layer) {
    panels.push_back(map_json(map, layer));
  }
  return {{"title", "Load by layer and expert"},
          {"note", "Rows of an expert over an equal share"},
          {"x", {{"label", "step"}, {"ranges", ranges}}},
          {"panels", panels}};
}

}  // namespace

std::vector<Panel> make_panels(const History& history, std::vector<std::string>* zero) {
  std::vector<Panel> panels;
  add_loss(history, panels);
  add_accuracy(history, panels);
  for (const auto& spec : single_curve_panels()) {
    // Without lambda, sparsity is a function of experts per token.
    const bool is_redundant =
        spec.curve == std::string_view("sparsity") && history.find_curve("lambda") == nullptr;
    const Downsampled* curve = is_redundant ? nullptr : history.find_curve(spec.curve);
    const bool is_routing = std::string_view(spec.group) == kRoutingGroup;
    if (curve != nullptr && is_routing && curve->least.value == 0 && curve->largest.value == 0) {
      if (zero != nullptr) {
        zero->push_back(spec.title);
      }
    } else if (curve != nullptr) {
      panels.push_back({spec, {{"", curve}}});
    }
  }
  return panels;
}

std::vector<Point> smoothed(const std::vector<Point>& points) {
  constexpr int64_t kFewest = 20, kReach = 30;  // half-width: 1/30 of the curve
  const auto count = std::ssize(points);
  if (count < kFewest) {
    return {};
  }
  const auto reach = std::max<int64_t>(1, count / kReach);
  std::vector<Point> smooth;
  for (int64_t index = 0; index < count; ++index) {
    const int64_t near =
        std::min({reach, index, count - 1 - index});  // symmetric, to avoid lag at the ends
    double sum = 0, weights = 0;
    for (int64_t at = index - near; at <= index + near; ++at) {
      const double weight = static_cast<double>(near + 1 - std::abs(at - index));
      sum += weight * points[static_cast<size_t>(at)].value;
      weights += weight;
    }
    smooth.push_back({points[static_cast<size_t>(index)].step, sum / weights});
  }
  return smooth;
}

OrderedJson curve_sections(const std::vector<Panel>& panels, const CurveSettings& settings) {
  OrderedJson sections = OrderedJson::array();
  const size_t max_points = points_per_curve(panels);
  std::map<std::string, size_t> section_of_group;
  for (const auto& panel : panels) {
    const auto [place, is_new] = section_of_group.emplace(panel.spec.group, sections.size());
    if (is_new) {  // the loss has no heading
      const bool is_loss = panel.spec.group == std::string_view(kLossGroup);
      sections.push_back(
          {{"title", is_loss ? "" : panel.spec.group}, {"panels", OrderedJson::array()}});
    }
    sections[place->second]["panels"].push_back(panel_json(panel, settings, max_points));
  }
  return sections;
}

OrderedJson drawn_sections(const History& history, const CurveSettings& settings) {
  OrderedJson sections = curve_sections(make_panels(history), settings);
  if (!history.loads().empty()) {
    sections.push_back(maps_section(history.loads()));
  }
  return sections;
}

}  // namespace moe::train
