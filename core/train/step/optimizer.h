#pragma once
// AdamW (Loshchilov and Hutter 2019) with the numbers of torch.optim.AdamW, on the CPU by
// LibTorch's fused kernel, on a GPU by kernels/ops/adamw.h:
//   w -= lr * weight_decay * w;   m = b1 m + (1-b1) g;   v = b2 v + (1-b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Norms and biases (every parameter of one dimension) are never decayed. Embedding and head are, as
// every matrix is for GPT-3 and LLaMA, or not, as for OLMo 2: decay shrinks the rows of rare
// tokens, and the gradient behind a norm grows as its input shrinks (Takase et al. 2023).
//
// The moments m and v are kept in f32, or in bf16 at half the bytes. In bf16 a piece of them at a
// time is widened, updated as above, so that the step itself is made of full-precision moments, and
// rounded back stochastically (kernels/ops/stochastic_round.h): with b2 = 0.999 a v without
// gradient falls by 0.1 % a step, less than half a spacing of bf16, and under nearest rounding
// would never fall again. The price is noise without bias: a step changes v by |d|, its rounding
// has a variance of at most spacing * |d|, which over the 1 / (2 (1 - b2)) steps that v remembers
// comes to 6 % of v or 3 % of sqrt(v) at b2 = 0.999. The random numbers follow from (seed, name, t,
// element), so that a run that goes on is the run that never stopped.

#include <ATen/ATen.h>

#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"

namespace moe::train {

// What one process updates of a parameter: all of it, or the elements from `begin` on.
struct Slice {
  std::string name;
  at::Tensor values;           // the parameter, or a flat view of a part of it
  std::vector<int64_t> shape;  // of the whole parameter, whoever holds its parts
  int64_t begin = 0;           // of `values` in it
};

// Whole parameters, held by this process alone.
std::vector<Slice> whole_slices(const std::vector<model::NamedParameter>& parameters);

class AdamW {
 public:
  // `seed`: of the rounding of moments in bf16, which the place in the whole parameter then
  // decides. The gradient of a slice is that of its `values`.
  AdamW(const std::vector<Slice>& slices, const AdamWSettings& settings, uint64_t seed = 0);
  AdamW(const std::vector<model::NamedParameter>& parameters, const AdamWSettings& settings,
        uint64_t seed = 0);

  // One update of every parameter that has a gradient, as torch does: one without keeps its moments
  // and its count. A GPU's kernel multiplies gradients by `gradient_scale` (clip_scale()) as it
  // reads them, which spares a pass over all of them; on the CPU clip_gradients() has done so.
  void step(double lr, double gradient_scale = 1);
  void clear_gradients();
  // exp_avg.NAME, exp_avg_sq.NAME (of the moments' type) and updates.NAME of every slice: the
  // tensors in use, for saving and restoring.
  std::vector<Slice> state() const;

 private:
  struct Slot {
    Slice slice;
    at::Tensor weight;        // its values
    at::Tensor mean, square;  // m and v, their shape, f32 or bf16
    at::Tensor updates;       // t, scalar f32 on the host (what LibTorch's kernel takes)
    uint64_t mean_stream, square_stream;  // of the random numbers that round them
  };
  struct Group {
    double weight_decay = 0;
    std::vector<Slot> slots;
  };
  // What is the same for all parameters of a group in one step.
  struct Factors {
    double lr, weight_decay;
    at::Tensor gradient_scale;  // f32, one element on the GPU; undefined: 1
  };
  void step_group(const Group& group, double lr, double gradient_scale) const;
  // One parameter whose moments are bf16, for the t-th time.
  void step_rounded(const Slot& slot, const Factors& factors, uint64_t t) const;
  // One pass over each.
  void update(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
              const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& squares,
              const std::vector<at::Tensor>& updates, const Factors& factors) const;

  AdamWSettings settings_;
  Group decayed_, kept_;
};

// The Euclidean norm of all gradients together, summed in double over f32 norms of small pieces. 0
// without gradients.
double gradient_norm(const std::vector<model::NamedParameter>& parameters);

// As torch.nn.utils.clip_grad_norm_: by how much all gradients are multiplied, max_norm /
// (norm + 1e-6) where that is below 1, else 1. `norm` is gradient_norm's; max_norm 0 = never.
double clip_scale(double norm, double max_norm);
// Multiplies them by it.
void clip_gradients(const std::vector<model::NamedParameter>& parameters, double norm,
                    double max_norm);

}  // namespace moe::train
