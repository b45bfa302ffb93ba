#pragma once
// Which numbers of metrics.jsonl a report draws, each in a panel of its own. A history keeps only
// these, so that its size does not depend on what else a line holds.

#include <string>
#include <vector>

namespace moe::train {

inline constexpr const char* kLossGroup = "Loss";
inline constexpr const char* kLearningGroup = "Learning";
inline constexpr const char* kRoutingGroup = "Routing, all layers";

// A panel of one curve of metrics.jsonl.
struct PanelSpec {
  const char* group;
  std::string title;
  const char* unit;
  const char* curve;
  double scale = 1;  // what values are multiplied by to be in `unit`
  bool from_zero = false, is_smoothed = false;
  bool is_loss = false;  // may be seen on a log scale, and begins after the warm-up
};

const std::vector<PanelSpec>& single_curve_panels();

// The task whose accuracy the curve "tasks/TASK/acc" is; empty where it is another curve.
std::string task_of_curve(const std::string& curve);

// Whether the curve of this name stands in a panel: one of the table, the losses, an accuracy.
bool is_drawn(const std::string& curve);

}  // namespace moe::train
