#pragma once
// From gradients to new weights: outlier steps, gradient norm, clipping, AdamW, and the sharding of
// the update over processes (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/train/step/optimizer.h"

namespace moe::train {

inline constexpr int64_t kOutlierWindow = 128, kOutlierStart = 64;  // steps
inline constexpr int64_t kMaxConsecutiveOutliers = 16;

// Losses and gradient norms of the last steps, saved in checkpoints.
struct OutlierWindow {
  std::vector<double> losses, norms;  // oldest first, of equal length
  int64_t in_a_row = 0;               // number of consecutive outliers up to now
  bool operator==(const OutlierWindow&) const = default;
};

// Decides whether a step is an outlier, and adds it to `window`. Returns the reason if it is.
// `loss` and `norm` must be finite, `z` > 0.
//
// A step is an outlier if its loss or gradient norm is more than `z` standard deviations above the
// mean of the last kOutlierWindow steps, once there are kOutlierStart (SkipStepOptimizer of
// OLMo-core, Ai2 2024; here values below the mean never count).
//
// The window stores outliers as well, but clipped to the threshold that they exceeded (winsorized).
// If they were left out, a permanent change of the loss (other data, another length) would be an
// outlier forever; if they were stored unclipped, one extreme value would widen the window for 128
// steps. Clipped, one outlier raises the threshold by about a seventh at Z = 6, and a shift of 10
// standard deviations is accepted after 6 consecutive steps, one of 50 after 18. After
// kMaxConsecutiveOutliers outliers in a row the values are taken as a new level: the window is
// cleared, and the reason says so.
std::optional<std::string> find_outlier(OutlierWindow& window, double loss, double norm, double z);

// Returns the processes that hold a parameter: the replicas for experts, all processes otherwise.
distributed::Comm& parameter_holders(const model::NamedParameter& parameter,
                                     distributed::World& world);

// Returns each parameter as this process holds it, with its offset in the whole parameter for
// experts and parts of sharded matrices.
std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout);

// Shards the update over processes: of a parameter that n processes hold, each updates an n-th.
// Gradients are summed by reduce-scatter, the moments of a part exist once, and the new weights are
// all-gathered. A matrix that is sharded itself (core/model/llama/weight_shards.h) is updated by
// its holder, and its gradient was reduced during backward.
class RankShards {
 public:
  // `trained`: the parameters of this process that train, in the same order on all processes.
  RankShards(const std::vector<model::NamedParameter>& trained, distributed::World& world);

  // Returns flat views of the parts that this process updates. None is empty.
  const std::vector<Slice>& slices() const { return slices_; }

  // Sums the parameters' gradients over their holders into the gradients of the slices, and frees
  // the former. A parameter without a gradient on all processes gets none.
  void reduce_gradients();
  // Returns the norm of all gradients, counting each parameter once. Requires reduce_gradients().
  double norm() const;
  // All-gathers the weights of the slices.
  void gather_weights();

 private:
  struct HeldParameter {
    at::Tensor parameter;
    distributed::Comm* holders;
    distributed::Part part;   // of its elements
    at::Tensor slice;         // undefined if the part is empty
    bool is_sharded = false;  // this process holds only its slice
  };
  // Pads [elements] to [holders * part length] with zeros.
  static at::Tensor padded(const at::Tensor& flat, const HeldParameter& held);
  // Returns for each parameter whether any process has a gradient.
  std::vector<bool> has_gradient() const;

  distributed::World& world_;
  std::vector<HeldParameter> held_;
  std::vector<Slice> slices_;
};

// Computes the gradient norm, clips, and updates the weights. With several processes the results
// are those of one process.
class Updater {
 public:
  // `world` is null for a single process, and outlives the updater.
  Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
          uint64_t seed, distributed::World* world);

  void clear_gradients();
  // Returns the norm of all gradients since clear_gradients(), over all processes. Called once per
  // step.
  double gradient_norm();
  // Clips to `clip` (0 = no clipping), given the result of gradient_norm(), and updates the
  // weights.
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
