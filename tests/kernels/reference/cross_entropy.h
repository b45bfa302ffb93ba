#pragma once
// The cross-entropy of each row, and its gradient in place of the logits, as plain loops in double.

#include <algorithm>
#include <cmath>

#include "kernels/ops/cross_entropy.h"

namespace moe::test {

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
