#pragma once
// RMSNorm and its gradients as plain loops in double, for f32 and f64 operands. x, y, grad, grad_x
// [rows, width]; weight, grad_weight [width]; scale [rows].

#include <cmath>

#include "kernels/ops/rms_norm.h"

namespace moe::test {

template <typename Number>
void rms_norm_forward_reference(const Number* x, const Number* weight, Number* y, Number* scale,
                                int64_t rows, int64_t width, double epsilon) {
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double value = x[row * width + i];
      squares += value * value;
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    scale[row] = static_cast<Number>(factor);
    for (int64_t i = 0; i < width; ++i) {
      y[row * width + i] = static_cast<Number>(x[row * width + i] * factor * weight[i]);
    }
  }
}

template <typename Number>
void rms_norm_backward_reference(const Number* grad, const Number* x, const Number* weight,
                                 const Number* scale, Number* grad_x, Number* grad_weight,
                                 int64_t rows, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += static_cast<double>(grad[row * width + i]) * x[row * width + i] * scale[row];
    }
    grad_weight[i] = static_cast<Number>(sum);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const double factor = scale[row];
    double products = 0;
    for (int64_t i = 0; i < width; ++i) {
      products +=
          static_cast<double>(grad[row * width + i]) * weight[i] * x[row * width + i] * factor;
    }
    const double mean = products / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) {
      const double normed = x[row * width + i] * factor;
      const double direct = static_cast<double>(grad[row * width + i]) * weight[i];
      grad_x[row * width + i] = static_cast<Number>((direct - normed * mean) * factor);
    }
  }
}

}  // namespace moe::test
