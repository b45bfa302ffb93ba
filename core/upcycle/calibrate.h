#pragma once
// Calibration of a new mixture on a text, before any training: the mean gate sum, whose inverse is
// --gate-scale auto (core/route/README.md), and the ReLU experts without tokens. The text runs
// through the dense parent once. The routers read the inputs of the feed-forwards of the parent, so
// that the gates of a layer do not depend on the gate scale of other layers.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/upcycle/upcycle.h"
#include "core/upcycle/verify.h"

namespace moe::model {

struct LayerGates {
  int64_t layer = 0;
  double gate_sum = 0;        // sum over tokens and experts of w_ij, without gate_scale
  std::vector<int64_t> load;  // [E] tokens of each expert
};

struct GateMeasure {
  std::string text;  // name of the text
  int64_t tokens = 0;
  std::vector<LayerGates> layers;  // the MoE layers, ascending
  double mean_gate_sum() const;    // over tokens and MoE layers; a token without expert counts as 0
};

// Runs `parent` in f32 over windows of at most 512 tokens, one routing group each, with the router
// and the logical ranks of `child`.
GateMeasure measure_gates(const io::Checkpoint& parent, const io::Checkpoint& child,
                          const VerifyText& text);

// Returns 1 / mean gate sum. Throws UserError if no token has a gate.
double compute_gate_scale(const GateMeasure& measure);

// Returns a sentence for each layer in which some expert, or every expert, has no token.
std::vector<std::string> describe_dead_experts(const GateMeasure& measure);

// Calibrates the written folder `staged` for upcycle(): determines gate_scale if it is empty in
// `settings` (1 without a forward pass if the gate weights sum to 1), and finds the experts of ReLU
// routers that get no token.
Calibration calibrate(const io::Checkpoint& parent, const std::filesystem::path& staged,
                      const UpcycleSettings& settings, const VerifyText& text);

}  // namespace moe::model
