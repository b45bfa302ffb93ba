#pragma once
// AdamW's numbers, apart from the optimizer so that settings need no LibTorch. Defaults: SPEC D20.

namespace moe::train {

struct AdamWSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
};

}  // namespace moe::train
