#pragma once
// Which steps are outliers: their loss or gradient norm stands far above those just before, as
// after a batch of rubbish, and their update is better not made. Measured as OLMo's
// SkipStepOptimizer does (OLMo-core, Ai2 2024): in standard deviations from the mean of the last
// 128 steps, from the 64th on. Here only what lies above counts: a loss that falls is no accident.
//
// An outlier enters the window too, but no higher than the bound it broke. Never entering, a loss
// that has moved for good (other data, another length) would be an outlier for ever. Entering as it
// is, one absurd value would widen the window so much that lesser ones pass for the 128 steps after
// it. Entering at the bound (winsorised), one outlier raises the bound by about a seventh at Z = 6,
// several in a row let a shift of 10 standard deviations pass after 6 steps, one of 50 after 18.
// That is the longest: 16 in a row are no outliers but a new level. It is said so, and the window
// begins anew. What is no number is never judged here and never enters.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe::train {

inline constexpr int64_t kOutlierWindow = 128, kOutlierStart = 64;  // steps
inline constexpr int64_t kMostOutliersInARow = 16;

// What is remembered between steps; a checkpoint holds it.
struct OutlierWindow {
  std::vector<double> losses, norms;  // of the last steps, oldest first; equally many
  int64_t in_a_row = 0;               // outliers up to now
  bool operator==(const OutlierWindow&) const = default;
};

// Judges a step by `window` as it stands, then enters it there. Its loss and norm are finite, `z` >
// 0. Empty: an ordinary step. Otherwise why it is none, in words.
std::optional<std::string> judge_step(OutlierWindow& window, double loss, double norm, double z);

}  // namespace moe::train
