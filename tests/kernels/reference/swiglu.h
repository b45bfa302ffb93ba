#pragma once
// SwiGLU and its gradient as plain loops in double. hidden, grad_hidden [rows, 2 * width]; out,
// grad_out [rows, width].

#include <cmath>

#include "kernels/ops/swiglu.h"

namespace moe::test {

inline void swiglu_forward_reference(const float* hidden, float* out, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const double gate = hidden[row * 2 * width + column];
      const double up = hidden[row * 2 * width + width + column];
      out[row * width + column] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
}

inline void swiglu_backward_reference(const float* grad_out, const float* hidden,
                                      float* grad_hidden, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const double gate = hidden[row * 2 * width + column];
      const double up = hidden[row * 2 * width + width + column];
      const double grad = grad_out[row * width + column];
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      grad_hidden[row * 2 * width + column] =
          static_cast<float>(grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
      grad_hidden[row * 2 * width + width + column] = static_cast<float>(grad * gate * sigmoid);
    }
  }
}

}  // namespace moe::test
