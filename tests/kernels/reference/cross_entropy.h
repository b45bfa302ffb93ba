#pragma once
// The cross-entropy of each row, and its gradient in place of the logits, as plain loops in double.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/cross_entropy.h"

namespace moe::test {

// Runs cross_entropy_() in f32 and returns the sum of the losses.
inline double cross_entropy_sum(at::Tensor& logits, const at::Tensor& target, double scale) {
  const at::Tensor loss = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  kernels::cross_entropy_(logits, target.to(logits.device()), scale, loss, /*in_bf16=*/false);
  return loss.sum().item<double>();
}

inline void cross_entropy_reference(const kernels::CrossEntropyArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* z = args.logits + row * args.vocabulary;
    const int64_t target = args.target[row];
    double largest = -INFINITY, sum = 0;
    for (int64_t v = 0; v < args.vocabulary; ++v) {
      largest = std::max<double>(largest, z[v]);
    }
    for (int64_t v = 0; v < args.vocabulary; ++v) {
      sum += std::exp(z[v] - largest);
    }
    args.loss[row] = std::log(sum) + largest - z[target];
    for (int64_t v = 0; v < args.vocabulary; ++v) {
      const double probability = std::exp(z[v] - largest) / sum;
      z[v] = static_cast<float>(args.scale * (probability - (v == target ? 1.0 : 0.0)));
    }
  }
}

}  // namespace moe::test
