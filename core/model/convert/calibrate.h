#pragma once
// The size of new routers' gates, measured on a text before anything is trained: what --gate-scale
// auto divides by (core/route/README.md), and the ReLU experts that no token reaches.
//
// The text runs through the DENSE PARENT and each router reads the input that the parent's
// feed-forward gets in its layer. That is what the layer would see if the mixture computed the
// parent's function, which the scale is to bring about: no layer's gates are measured on what
// another layer's wrong scale made of its input, so one pass is exact and there is no fixed point
// to look for. Of the mixture only the routers are read.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/convert/upcycle.h"
#include "core/model/convert/verify.h"

namespace moe::model {

struct LayerGates {
  int64_t layer = 0;
  double gate_sum = 0;        // sum over tokens and experts of w_ij, gate_scale left out
  std::vector<int64_t> load;  // [E] tokens that the expert serves
};

struct GateMeasure {
  std::string text;  // what was read
  int64_t tokens = 0;
  std::vector<LayerGates> layers;  // the MoE layers, ascending
  double mean_gate_sum() const;    // over tokens and MoE layers; a token without expert counts as 0
};

// Runs the parent in f32 over windows of at most 512 tokens, one routing group each, with the
// router and logical ranks that `child` stores.
GateMeasure measure_gates(const io::Checkpoint& parent, const io::Checkpoint& child,
                          const VerifyText& text);

// 1 / mean gate sum. UserError where no token has a gate.
double gate_scale_of(const GateMeasure& measure);

// A sentence a layer of which some expert serves no token, or none does.
std::vector<std::string> dead_experts(const GateMeasure& measure);

// What upcycle() wants of a written folder: gate_scale where `settings` leave it open, and for a
// ReLU router the warnings of dead_experts(). Nothing is run for routers whose weights sum to 1.
Calibration calibrate(const io::Checkpoint& parent, const std::filesystem::path& staged,
                      const UpcycleSettings& settings, const VerifyText& text);

}  // namespace moe::model
