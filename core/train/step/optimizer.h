#pragma once
// Parameters that train (--train), and their optimizer.
//
// AdamW (Loshchilov and Hutter 2019), numerically equal to torch.optim.AdamW (kernels/ops/adamw.h):
//   w -= lr * weight_decay * w;   m = b1 m + (1-b1) g;   v = b2 v + (1-b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Norms and biases (parameters of one dimension) are never decayed. --decay-embeddings off, as in
// OLMo 2, does not decay embedding and head: decay shrinks the rows of rare tokens, and the
// gradient through a norm grows as the input of the norm shrinks (Takase et al. 2023).
//
// bf16 moments are widened a piece at a time, updated in f32, and rounded stochastically. Rounding
// to nearest would freeze v: with b2 = 0.999 and a zero gradient v decreases by 0.1 % per step,
// which is less than half a spacing of bf16. Stochastic rounding is unbiased. Over the 1 / (1 - b2)
// steps that v averages, its error has a standard deviation of 3 % of sqrt(v). The random numbers
// are a function of (seed, name, t, element): a resumed run equals an uninterrupted one.

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Returns the parameters named by any of `words`, in the model's order; all of them if `words` is
// empty. A word is a group (experts, router, attention, dense, norms, embeddings) or a pattern of
// names with a * (model.layers.0.*). Adapters always train; with them, no words mean the router.
// Throws UserError for a word that is neither, that matches no parameter, or that matches a weight
// with an adapter.
std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words);

// Returns true if `words` name the router of MoE layer `layer`, or are empty.
bool trains_router(const std::vector<std::string>& words, int64_t layer);
// Overload for the whole model: true if the router of any MoE layer trains.
bool trains_router(const std::vector<std::string>& words, const model::ModelConfig& config);

// Returns true if a parameter that trains has a bf16 working copy
// (kernels/ops/bf16_working_copy.h): matrices of bf16 runs on GPUs, except routers and gates of
// shared experts (f32 products), embeddings without a product, and sharded matrices (cast when they
// are gathered). False with recomputation of layers, to save memory.
bool has_bf16_copy(const model::NamedParameter& parameter, const model::ModelConfig& config,
                   const TrainSettings& settings);

// Returns true if a sharded matrix is gathered in bf16: in bf16 runs on GPUs, except the embedding.
bool is_gathered_in_bf16(const model::NamedParameter& parameter, const TrainSettings& settings);

// Returns the layer of a parameter name; -1 if it is outside of the layers.
int64_t layer_index(const std::string& name);

// The part of a parameter that one process updates.
struct Slice {
  std::string name;
  at::Tensor values;           // the parameter, or a flat view of a part of it
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;           // offset of `values` in the whole parameter, in elements
};

// Returns each parameter as a process of `layout` holds it; by default slices are whole parameters.
std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout = {});

class AdamW {
 public:
  // `seed` seeds the stochastic rounding of bf16 moments. The gradient of a slice is values.grad().
  AdamW(const std::vector<Slice>& slices, const AdamWSettings& settings, uint64_t seed = 0);

  // Updates every parameter that has a gradient; the others keep their moments and their count, as
  // in torch. `gradient_scale` (clip_scale()) multiplies the gradients, on the CPU in place.
  void step(double lr, double gradient_scale = 1);
  void clear_gradients();
  // Returns exp_avg.NAME, exp_avg_sq.NAME (in the moments' type) and updates.NAME (t) of every
  // slice, for saving and restoring. The tensors are not copied.
  std::vector<Slice> state() const;

 private:
  struct Slot {
    Slice slice;
    double weight_decay;
    at::Tensor mean, square;              // m and v, shape of slice.values, f32 or bf16
    at::Tensor updates;                   // t, a scalar on the CPU
    uint64_t mean_stream, square_stream;  // random streams of the rounding
  };

  AdamWSettings settings_;
  std::vector<Slot> slots_;  // decayed parameters, then the others
};

// Returns the Euclidean norm of all gradients, summed in f64 over f32 norms of small pieces.
double gradient_norm(const std::vector<Slice>& slices);

// Returns the factor of torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 if
// max_norm is 0. `norm` is that of gradient_norm().
double clip_scale(double norm, double max_norm);

inline constexpr int64_t kOutlierWindow = 128, kOutlierStart = 64;  // steps
inline constexpr int64_t kMaxConsecutiveOutliers = 16;

// Losses and gradient norms of the last steps, saved in checkpoints.
struct OutlierWindow {
  std::vector<double> losses, norms;  // oldest first, of equal length
  int64_t in_a_row = 0;               // number of consecutive outliers up to now
  bool operator==(const OutlierWindow&) const = default;
};

// Returns the reason if a step is an outlier, else nothing. Adds the step to `window`. `loss` and
// `norm` must be finite, `z` > 0.
//
// A step is an outlier if its loss or gradient norm is more than `z` standard deviations above the
// mean of the last kOutlierWindow steps, once there are kOutlierStart (SkipStepOptimizer of
// OLMo-core, Ai2 2024; here values below the mean are never outliers).
//
// The window also stores outliers, clipped to the threshold that they exceeded (winsorized): a
// permanent change of the loss (other data, another length) is then accepted after a few steps, and
// one extreme value raises the threshold by about a seventh at z = 6. After kMaxConsecutiveOutliers
// outliers in a row the window is cleared, and the reason includes this.
std::optional<std::string> find_outlier(OutlierWindow& window, double loss, double norm, double z);

// Returns the processes that hold a parameter: the replicas for experts, all processes otherwise.
distributed::Comm& parameter_holders(const model::NamedParameter& parameter,
                                     distributed::World& world);

// Computes the gradient norm, clips, and updates the weights.
//
// With several processes the results are those of one process, and the update is sharded over the
// processes that hold a parameter (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1): each
// updates one part. Gradients are summed by reduce-scatter, and the new weights are all-gathered.
// Sharded matrices (core/model/llama/weight_shards.h) need neither: each process updates its shard,
// and backward has reduced the gradient.
class Updater {
 public:
  // `trained`: the parameters of this process that train, in the same order on all processes.
  // `world` is null for a single process, and outlives the updater.
  Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
          uint64_t seed, distributed::World* world);

  void clear_gradients();
  // Returns the norm of all gradients since clear_gradients(), counting each parameter once. Moves
  // the sums of the gradients over their holders to the slices. Called once per step.
  double gradient_norm();
  // Clips gradients of that norm to `clip` (0 = no clipping) and updates the weights.
  void step(double norm, double clip, double lr);

  AdamW& optimizer() { return optimizer_; }

 private:
  // A parameter of several processes.
  struct SharedParameter {
    at::Tensor parameter;
    distributed::Comm* holders;
    distributed::Part part;   // of its elements
    at::Tensor slice;         // undefined if the part is empty
    bool is_sharded = false;  // this process holds only its slice
  };
  std::vector<Slice> make_slices();
  void reduce_gradients();
  void gather_weights() const;

  std::vector<model::NamedParameter> trained_;
  distributed::World* world_;
  std::vector<SharedParameter> shared_;  // empty for a single process
  std::vector<Slice> slices_;            // that this process updates, without empty ones
  AdamW optimizer_;
};

}  // namespace moe::train
