#pragma once
// AdamW (Loshchilov and Hutter 2019) with the numbers of torch.optim.AdamW, on LibTorch's fused
// kernel:
//   w -= lr * weight_decay * w;   m = b1 m + (1-b1) g;   v = b2 v + (1-b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Norm weights (every parameter of one dimension) are never decayed.

#include <torch/types.h>

#include <vector>

#include "core/model/llama.h"
#include "core/train/adamw_settings.h"

namespace moe::train {

class AdamW {
 public:
  AdamW(const std::vector<model::NamedParameter>& parameters, const AdamWSettings& settings);

  // One update of every parameter that has a gradient, as torch does: one without keeps its moments
  // and its count.
  void step(double lr);
  void clear_gradients();
  // exp_avg.NAME, exp_avg_sq.NAME and updates.NAME of every parameter: the tensors in use, for
  // saving and restoring.
  std::vector<model::NamedParameter> state() const;

 private:
  struct Slot {
    std::string name;
    torch::Tensor weight;        // the parameter itself
    torch::Tensor mean, square;  // m and v, its shape, f32
    torch::Tensor updates;       // t, scalar f32 (what the fused kernel takes)
  };
  struct Group {
    double weight_decay = 0;
    std::vector<Slot> slots;
  };
  void step_group(const Group& group, double lr) const;

  AdamWSettings settings_;
  Group decayed_, kept_;
};

// The Euclidean norm of all gradients together, summed in double over f32 norms of small pieces. 0
// without gradients.
double gradient_norm(const std::vector<model::NamedParameter>& parameters);

// As torch.nn.utils.clip_grad_norm_: scales all gradients by max_norm / (norm + 1e-6) where that is
// below 1. `norm` is gradient_norm's; max_norm 0 = never.
void clip_gradients(const std::vector<model::NamedParameter>& parameters,
                    double norm,
                    double max_norm);

}  // namespace moe::train
