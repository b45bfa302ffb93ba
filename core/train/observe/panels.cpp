#include "core/train/observe/panels.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace moe::train {

namespace {

constexpr const char* kOptimizer = "Optimizer";
constexpr const char* kMachine = "Machine";

}  // namespace

const std::vector<PanelSpec>& single_curve_panels() {
  static const std::vector<PanelSpec> panels = {
      {kLearningGroup, "Load-balance loss", "unscaled, sum over layers", "load_balance_loss", 1,
       false, false, true},
      {kLearningGroup, "Entropy loss", "unscaled, sum over layers", "entropy_loss", 1, false, false,
       true},
      {kLearningGroup, "L1 loss", "unscaled, sum over layers", "l1_loss", 1, false, false, true},
      {kLearningGroup, "Router z-loss", "unscaled, sum over layers", "z_loss", 1, false, false,
       true},
      {kLearningGroup, "Balance within sequences", "unscaled, sum over layers",
       "sequence_balance_loss", 1, false, false, true},
      {kLearningGroup, "Auxiliary losses", "as added to the loss", "auxiliary_loss", 1, false,
       false, true},
      {kLearningGroup, "Lambda", "weight of L1", "lambda"},
      {kLearningGroup, "Router bias", "largest of the choice, all layers", "bias_max"},
      {kLearningGroup, "Sparsity", "share of experts that do not run", "sparsity"},
      {kOptimizer, "Learning rate", "", "lr", 1, true},
      {kOptimizer, "Gradient norm", "before clipping", "grad_norm", 1, true, true},
      {kMachine, "Speed", "tokens per second", "tokens_per_second", 1, true, true},
      {kMachine, "Memory", "GB, the process at its largest", "peak_memory_bytes", 1e-9, true},
      {kRoutingGroup, "Experts per token", "rows over tokens", "experts_per_token"},
      {kRoutingGroup, "Dropped", "% of requests", "dropped_share", 100, true},
      {kRoutingGroup, "Unserved", "% of tokens, no expert at all", "unserved_share", 100, true},
      {kRoutingGroup, "Filled", "% of fill-in requests (FR)", "filled_share", 100, true},
      {kRoutingGroup, "Rectified", "% of tokens, IR rows", "ir_share", 100, true},
      {kRoutingGroup, "Load", "busiest expert over the mean, worst layer", "load_max_over_mean"},
      {kRoutingGroup, "Dead experts", "without a token, over all layers", "dead_experts", 1, true},
      {kRoutingGroup, "Router entropy", "nats per token", "entropy"},
  };
  return panels;
}

std::string task_of_curve(const std::string& curve) {
  constexpr std::string_view kPrefix = "tasks/", kSuffix = "/acc";
  if (!curve.starts_with(kPrefix) || !curve.ends_with(kSuffix) ||
      curve.size() <= kPrefix.size() + kSuffix.size()) {
    return "";
  }
  return curve.substr(kPrefix.size(), curve.size() - kPrefix.size() - kSuffix.size());
}

bool is_drawn(const std::string& curve) {
  static const std::set<std::string> drawn = [] {
    std::set<std::string> names = {"loss", "held_out_loss"};
    for (const auto& panel : single_curve_panels()) {
      names.insert(panel.curve);
    }
    return names;
  }();
  return drawn.count(curve) > 0 || !task_of_curve(curve).empty();
}

}  // namespace moe::train
