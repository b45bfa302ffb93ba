#pragma once
// The numbers of a report: which curves stand together in a panel, under what name, and the JSON
// that report.js draws.

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/history.h"

namespace moe::train {

struct PanelLine {
  std::string name;  // "held out"; empty where a panel has one line
  const Downsampled* curve = nullptr;
};

struct Panel {
  std::string group, title, unit;
  double scale = 1;  // what values are multiplied by to be in `unit`
  bool from_zero = false, is_smoothed = false;
  std::vector<PanelLine> lines;
};

// The panels that this run has anything to show in. `zero`, if given, is told the titles of those
// left out because they are zero from first to last.
std::vector<Panel> panels_of(const History& history, std::vector<std::string>* zero = nullptr);

// Each point becomes the mean of its neighbours, nearer ones counting more; as many points. None
// where there are too few to smooth.
std::vector<Point> smoothed(const std::vector<Point>& points);

// {"panels": [{"group", "title", "unit", "zero", "rule", "lines": [{"name", "steps", "values",
// "smooth"}]}], "columns": [[first, last step]], "maps": [{"layer", "experts", "loads"}]}: loads
// are hundredths of an equal share, column by column. `clip` is drawn into the gradient norm.
OrderedJson report_data(const History& history, std::optional<double> clip);

}  // namespace moe::train
