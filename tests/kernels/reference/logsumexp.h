#pragma once
// The log-sum-exp and the argmax of each row as plain loops in double. logits [rows, vocabulary].

#include <cmath>

#include "kernels/ops/cross_entropy.h"

namespace moe::test {

inline void logsumexp_reference(const kernels::LogSumExpArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* z = args.logits + row * args.vocabulary;
    int64_t argmax = 0;
    for (int64_t v = 1; v < args.vocabulary; ++v) {
      argmax = z[v] > z[argmax] ? v : argmax;
    }
    const double largest = z[argmax];
    double sum = 0;
    for (int64_t v = 0; v < args.vocabulary; ++v) {
      sum += std::exp(z[v] - largest);
    }
    args.argmax[row] = argmax;
    args.logsumexp[row] = static_cast<float>(largest + std::log(sum));
  }
}

}  // namespace moe::test
