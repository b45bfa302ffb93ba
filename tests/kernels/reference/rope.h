#pragma once
// Rotary position embedding as plain loops in double, for f32 and f64 operands.

#include "kernels/ops/rope.h"

namespace moe::test {

using kernels::RopeShape;

template <typename Number>
void rope_reference(const Number* x, const float* cosine, const float* sine,
                    const int32_t* position, Number* y, const RopeShape& shape) {
  const int64_t half = shape.half;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t low = (token * shape.heads + head) * 2 * half + i, high = low + half;
        const bool rotates = head < shape.rotated;
        const double c = rotates ? cosine[position[token] * half + i] : 1;
        const double s =
            rotates ? sine[position[token] * half + i] * (shape.backwards ? -1 : 1) : 0;
        const double a = x[low], b = x[high];
        y[low] = static_cast<Number>(a * c - b * s);
        y[high] = static_cast<Number>(b * c + a * s);
      }
    }
  }
}

}  // namespace moe::test
