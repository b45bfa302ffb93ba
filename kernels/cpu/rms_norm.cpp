#include "kernels/ops/rms_norm.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Minimum rows per thread, and rows of a partial sum of the weight gradient.
constexpr int64_t kStrip = 32;

MOE_VECTOR_CLONES float sum_of_squares(const float* x, int64_t width) {
  return vector_sum<float>(width, [=](int64_t i) { return x[i] * x[i]; });
}

MOE_VECTOR_CLONES float sum_of_products(const float* a, const float* b, const float* c,
                                        int64_t width) {
  return vector_sum<float>(width, [=](int64_t i) { return a[i] * b[i] * c[i]; });
}

template <typename Number>
MOE_VECTOR_CLONES void scale_row(const float* x, const float* weight, float scale, int64_t width,
                                 Number* y) {
  for (int64_t i = 0; i < width; ++i) {
    narrow_to(x[i] * scale * weight[i], y[i]);
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

void rms_norm_forward_cpu(const RmsNormForwardArgs& args) {
  const int64_t width = args.width;
  at::parallel_for(0, args.rows, kStrip, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = static_cast<const float*>(args.x) + row * width;
      const double mean = static_cast<double>(sum_of_squares(x, width)) / width;
      args.scale[row] = static_cast<float>(1.0 / std::sqrt(mean + args.epsilon));
      if (args.y_is_bf16) {
        scale_row(x, args.weight, args.scale[row], width,
                  static_cast<uint16_t*>(args.y) + row * width);
      } else {
        scale_row(x, args.weight, args.scale[row], width,
                  static_cast<float*>(args.y) + row * width);
      }
    }
  });
}

void rms_norm_backward_cpu(const RmsNormBackwardArgs& args) {
  const int64_t rows = args.rows, width = args.width, strips = (rows + kStrip - 1) / kStrip;
  std::vector<float> sums(static_cast<size_t>(strips * width));
  at::parallel_for(0, strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kStrip; row < std::min(rows, end * kStrip); ++row) {
      const float* grad = static_cast<const float*>(args.grad) + row * width;
      const float* x = static_cast<const float*>(args.x) + row * width;
      const float scale = args.scale[row];
      const float mean =
          sum_of_products(grad, x, args.weight, width) * scale / static_cast<float>(width);
      backward_row(grad, x, args.weight, scale, mean, width,
                   static_cast<float*>(args.grad_x) + row * width,
                   sums.data() + row / kStrip * width);
    }
  });
  constexpr int64_t kColumns = 512;
  at::parallel_for(0, width, kColumns, [&](int64_t begin, int64_t end) {
    std::fill(args.grad_weight + begin, args.grad_weight + end, 0.0F);
    for (int64_t strip = 0; strip < strips; ++strip) {
      for (int64_t i = begin; i < end; ++i) {
        args.grad_weight[i] += sums[static_cast<size_t>(strip * width + i)];
      }
    }
  });
}

}  // namespace moe::kernels
