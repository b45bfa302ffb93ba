#include "core/train/observe/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace moe::train {

namespace {

// A panel of one curve of metrics.jsonl.
struct Known {
  const char* group;
  const char* title;
  const char* unit;
  const char* curve;
  double scale = 1;
  bool from_zero = false, is_smoothed = false;
};

constexpr const char* kLoss = "Loss";
constexpr const char* kLearning = "Learning";
constexpr const char* kOptimizer = "Optimizer";
constexpr const char* kMachine = "Machine";
constexpr const char* kRouting = "Routing, all layers";

const std::vector<Known>& known_panels() {
  static const std::vector<Known> panels = {
      {kLearning, "Load-balance loss", "unscaled, sum over layers", "load_balance_loss"},
      {kLearning, "Entropy loss", "unscaled, sum over layers", "entropy_loss"},
      {kLearning, "L1 loss", "unscaled, sum over layers", "l1_loss"},
      {kLearning, "Auxiliary losses", "as added to the loss", "auxiliary_loss"},
      {kLearning, "Lambda", "weight of L1", "lambda"},
      {kLearning, "Sparsity", "share of experts that do not run", "sparsity"},
      {kOptimizer, "Learning rate", "", "lr", 1, true},
      {kOptimizer, "Gradient norm", "before clipping", "grad_norm", 1, true, true},
      {kMachine, "Speed", "tokens per second", "tokens_per_second", 1, true, true},
      {kMachine, "Memory", "GB, the process at its largest", "peak_memory_bytes", 1e-9, true},
      {kRouting, "Experts per token", "rows over tokens", "experts_per_token"},
      {kRouting, "Dropped", "% of requests", "dropped_share", 100, true},
      {kRouting, "Unserved", "% of tokens, no expert at all", "unserved_share", 100, true},
      {kRouting, "Filled", "% of fill-in requests (FR)", "filled_share", 100, true},
      {kRouting, "Rectified", "% of tokens, IR rows", "ir_share", 100, true},
      {kRouting, "Load", "busiest expert over the mean, worst layer", "load_max_over_mean"},
      {kRouting, "Dead experts", "without a token, over all layers", "dead_experts", 1, true},
      {kRouting, "Router entropy", "nats per token", "entropy"},
  };
  return panels;
}

const Thinned* find(const History& history, const std::string& name) {
  const auto place = history.curves().find(name);
  return place == history.curves().end() || place->second.empty() ? nullptr : &place->second;
}

void add_loss(const History& history, std::vector<Panel>& panels) {
  Panel panel{kLoss, "Loss", "nats per target token", 1, false, true, {}};
  for (const auto& [name, curve] : {std::pair("training", "loss"), {"held out", "held_out_loss"}}) {
    if (const Thinned* found = find(history, curve)) {
      panel.lines.push_back({name, found});
    }
  }
  if (!panel.lines.empty()) {
    panels.push_back(std::move(panel));
  }
}

// A line a task.
void add_accuracy(const History& history, std::vector<Panel>& panels) {
  constexpr std::string_view kPrefix = "tasks/", kSuffix = "/acc";
  Panel panel{kLearning, "Accuracy", "% of questions", 100, false, false, {}};
  for (const auto& [name, curve] : history.curves()) {
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) {
      panel.lines.push_back(
          {name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()), &curve});
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

OrderedJson line_json(const Panel& panel, const PanelLine& line) {
  const std::vector<Point> points = line.curve->points();
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
    const Thinned* curve = is_told_twice ? nullptr : find(history, known.curve);
    const bool is_routing = std::string_view(known.group) == kRouting;
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
  for (const auto& panel : panels_of(history)) {
    OrderedJson json = {{"group", panel.group},
                        {"title", panel.title},
                        {"unit", panel.unit},
                        {"zero", panel.from_zero},
                        {"lines", OrderedJson::array()}};
    for (const auto& line : panel.lines) {
      json["lines"].push_back(line_json(panel, line));
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
