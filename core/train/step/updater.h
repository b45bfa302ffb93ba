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

#include "core/distributed/world.h"
#include "core/train/step/optimizer.h"

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

// Gradients and updates of several processes (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1):
// of every parameter that n processes hold each updates an n-th. Gradients are summed up where they
// are needed (reduce-scatter), the moments of a part exist once, the new weights go to all
// (all-gather). Experts are held by the replicas of their place, everything else by all processes.
// Of matrices that are sharded themselves (core/model/llama/weight_shards.h) a process has its part
// alone, and its gradient, which was summed up while backward ran: here they are updated.

// The processes that hold a parameter.
distributed::Comm& holders_of(const model::NamedParameter& parameter, distributed::World& world);

class RankShards {
 public:
  // `trained`: this process's parameters that train, in the same order everywhere.
  RankShards(const std::vector<model::NamedParameter>& trained, distributed::World& world);

  // What this process updates: flat views of its parameters, for AdamW. None is empty.
  const std::vector<Slice>& slices() const { return slices_; }

  // Sums the parameters' gradients over the processes that hold them into those of the slices, and
  // drops the former. A parameter without a gradient everywhere has none.
  void reduce_gradients();
  // Of all gradients together, every parameter counted once; after reduce_gradients().
  double norm() const;
  // The slices' weights, on every process that holds their parameters.
  void gather_weights();

 private:
  // A parameter and the part of it that is updated here.
  struct Held {
    at::Tensor parameter;
    distributed::Comm* holders;
    distributed::Part part;   // of its elements
    at::Tensor slice;         // undefined where that is empty
    bool is_sharded = false;  // its slice is all that is here
  };
  // [elements] of every parameter -> [holders * length] with zeros behind.
  static at::Tensor padded(const at::Tensor& flat, const Held& held);
  std::vector<bool> with_gradient() const;

  distributed::World& world_;
  std::vector<Held> held_;
  std::vector<Slice> slices_;
};

// Every parameter as this process holds it: experts, and parts of sharded matrices, have their
// place in the whole.
std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout);

// From gradients to new weights: norm, clipping, AdamW. In a world of several processes each keeps
// the moments of its shards (rank_shards.h); the numbers are those of one process.

class Updater {
 public:
  // `world`: of several processes, else nullptr; outlives the updater.
  Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
          uint64_t seed, distributed::World* world);

  void clear_gradients();
  // The norm of all gradients that were added since clear_gradients(), over all processes; called
  // once a step.
  double gradient_norm();
  // Clips to `clip` (0 = never) by `norm`, which gradient_norm() said, and updates the weights.
  void step(double norm, double clip, double lr);

  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  std::vector<model::NamedParameter> trained_;
  std::optional<RankShards> shards_;
  std::vector<model::NamedParameter> updated_;  // parameters, or slices of them
  AdamW optimizer_;
};

}  // namespace moe::train
