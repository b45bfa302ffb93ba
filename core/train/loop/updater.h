#pragma once
// From gradients to new weights: norm, clipping, AdamW. In a world of several processes each keeps
// the moments of its shards (rank_shards.h); the numbers are those of one process.

#include <optional>
#include <vector>

#include "core/train/loop/optimizer.h"
#include "core/train/loop/rank_shards.h"

namespace moe::train {

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
