#pragma once
// AdamW (Loshchilov and Hutter 2019), numerically equal to torch.optim.AdamW. Uses LibTorch's fused
// kernel on the CPU and kernels/ops/adamw.h on GPUs:
//   w -= lr * weight_decay * w;   m = b1 m + (1-b1) g;   v = b2 v + (1-b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Norms and biases (parameters of one dimension) are never decayed. Embedding and head are decayed
// as in GPT-3 and LLaMA, or not, as in OLMo 2: decay shrinks the rows of rare tokens, and the
// gradient behind a norm grows as its input shrinks (Takase et al. 2023).
//
// The moments m and v are stored in f32, or in bf16 at half the size. bf16 moments are widened a
// piece at a time, updated in f32, and rounded stochastically (kernels/ops/stochastic_round.h):
// with b2 = 0.999 a v without gradient decreases by 0.1 % per step, less than half a spacing of
// bf16, and would never decrease with rounding to nearest. The noise is unbiased: a step changes v
// by |d|, and its rounding has a variance of at most spacing * |d|; over the 1 / (2 (1 - b2)) steps
// of v's memory this is 6 % of v, or 3 % of sqrt(v), at b2 = 0.999. The random numbers are a
// function of (seed, name, t, element), so that a resumed run equals an uninterrupted one.

#include <ATen/ATen.h>

#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"

namespace moe::train {

// The part of a parameter that one process updates.
struct Slice {
  std::string name;
  at::Tensor values;           // the parameter, or a flat view of a part of it
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;           // offset of `values` in the whole parameter, in elements
};

// Returns slices that are whole parameters.
std::vector<Slice> whole_slices(const std::vector<model::NamedParameter>& parameters);

class AdamW {
 public:
  // `seed` is that of the rounding of bf16 moments, which depends on the offset of an element in
  // the whole parameter. The gradient of a slice is values.grad().
  AdamW(const std::vector<Slice>& slices, const AdamWSettings& settings, uint64_t seed = 0);
  AdamW(const std::vector<model::NamedParameter>& parameters, const AdamWSettings& settings,
        uint64_t seed = 0);

  // Updates every parameter that has a gradient; the others keep their moments and their count, as
  // in torch. `gradient_scale` (clip_scale()) multiplies the gradients as the GPU kernel reads
  // them; on the CPU it must be 1 (clip_gradients() scales them before).
  void step(double lr, double gradient_scale = 1);
  void clear_gradients();
  // Returns exp_avg.NAME, exp_avg_sq.NAME (in the moments' type) and updates.NAME of every slice:
  // the tensors in use, for saving and restoring.
  std::vector<Slice> state() const;

 private:
  struct Slot {
    Slice slice;
    at::Tensor weight;                    // slice.values
    at::Tensor mean, square;              // m and v, shape of weight, f32 or bf16
    at::Tensor updates;                   // t, f32 scalar on the CPU, as LibTorch's kernel requires
    uint64_t mean_stream, square_stream;  // random streams of the rounding
  };
  struct Group {
    double weight_decay = 0;
    std::vector<Slot> slots;
  };
  // Factors common to all parameters of a group in one step.
  struct Factors {
    double lr, weight_decay;
    at::Tensor gradient_scale;  // [1] f32 on the GPU; undefined: 1
  };
  void step_group(const Group& group, double lr, double gradient_scale) const;
  // Updates a parameter with bf16 moments for the t-th time.
  void step_rounded(const Slot& slot, const Factors& factors, uint64_t t) const;
  // Updates parameters with f32 moments.
  void update(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
              const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& squares,
              const std::vector<at::Tensor>& updates, const Factors& factors) const;

  AdamWSettings settings_;
  Group decayed_, not_decayed_;
};

// Returns the Euclidean norm of all gradients, summed in f64 over f32 norms of small pieces; 0 if
// there are no gradients.
double gradient_norm(const std::vector<model::NamedParameter>& parameters);

// Returns the factor of torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 if
// max_norm is 0. `norm` is that of gradient_norm().
double clip_scale(double norm, double max_norm);
// Multiplies the gradients by clip_scale().
void clip_gradients(const std::vector<model::NamedParameter>& parameters, double norm,
                    double max_norm);

}  // namespace moe::train
