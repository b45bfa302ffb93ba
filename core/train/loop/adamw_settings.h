#pragma once
// AdamW's numbers, apart from the optimizer so that settings need no LibTorch. Defaults:
// ../README.md.

namespace moe::train {

enum class MomentType { kF32, kBF16 };  // how the two moments are kept: 8 or 4 bytes a parameter

struct AdamWSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool decay_embeddings = true;  // embedding and head too; never norms and biases
  MomentType moments = MomentType::kF32;
};

}  // namespace moe::train
