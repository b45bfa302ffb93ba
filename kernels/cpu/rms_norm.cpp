// The vector code is the compiler's (vector_math.h).

#include "kernels/cpu/rms_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kLanes = 16, kStrip = 128;

MOE_VECTOR_CLONES float sum_of_squares(const float* x, int64_t width) {
  float lane[kLanes] = {};
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] += x[i + k] * x[i + k];
    }
  }
  float sum = 0;
  for (int64_t i = whole; i < width; ++i) {
    sum += x[i] * x[i];
  }
  for (const float part : lane) {
    sum += part;
  }
  return sum;
}

MOE_VECTOR_CLONES float sum_of_products(const float* a, const float* b, const float* c,
                                        int64_t width) {
  float lane[kLanes] = {};
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] += a[i + k] * b[i + k] * c[i + k];
    }
  }
  float sum = 0;
  for (int64_t i = whole; i < width; ++i) {
    sum += a[i] * b[i] * c[i];
  }
  for (const float part : lane) {
    sum += part;
  }
  return sum;
}

MOE_VECTOR_CLONES void scale_row(const float* x, const float* weight, float scale, int64_t width,
                                 float* y) {
  for (int64_t i = 0; i < width; ++i) {
    y[i] = x[i] * scale * weight[i];
  }
}

MOE_VECTOR_CLONES void backward_row(const float* grad, const float* x, const float* weight,
                                    float scale, float mean, int64_t width, float* grad_x,
                                    float* grad_weight) {
  for (int64_t i = 0; i < width; ++i) {
    const float normed = x[i] * scale;
    grad_weight[i] += grad[i] * normed;
    grad_x[i] = scale * (grad[i] * weight[i] - normed * mean);
  }
}

}  // namespace

void rms_norm_forward_cpu(const float* x, const float* weight, float* y, float* scale, int64_t rows,
                          int64_t width, double epsilon) {
  at::parallel_for(0, rows, kStrip, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * width;
      const double mean = static_cast<double>(sum_of_squares(from, width)) / width;
      scale[row] = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
      scale_row(from, weight, scale[row], width, y + row * width);
    }
  });
}

void rms_norm_backward_cpu(const float* grad, const float* x, const float* weight,
                           const float* scale, float* grad_x, float* grad_weight, int64_t rows,
                           int64_t width) {
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  std::vector<float> sums(static_cast<size_t>(strips * width));
  at::parallel_for(0, strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kStrip; row < std::min(rows, end * kStrip); ++row) {
      const float *dy = grad + row * width, *from = x + row * width;
      const float mean =
          sum_of_products(dy, from, weight, width) * scale[row] / static_cast<float>(width);
      backward_row(dy, from, weight, scale[row], mean, width, grad_x + row * width,
                   sums.data() + row / kStrip * width);
    }
  });
  std::fill_n(grad_weight, width, 0.0F);
  for (int64_t strip = 0; strip < strips; ++strip) {
    for (int64_t i = 0; i < width; ++i) {
      grad_weight[i] += sums[static_cast<size_t>(strip * width + i)];
    }
  }
}

}  // namespace moe::kernels
