// The reference of rope.h: plain loops, double inside. Tests hold every other form to it.

#include "kernels/ops/rope.h"

namespace moe::kernels {

template <typename Number>
void rope_reference(const Number* x, const float* cosine, const float* sine,
                    const int32_t* position, Number* y, const RopeShape& shape) {
  const int64_t half = shape.half;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t low = (token * shape.heads + head) * 2 * half + i, high = low + half;
        const bool turns = head < shape.turned;
        const double c = turns ? cosine[position[token] * half + i] : 1;
        const double s = turns ? sine[position[token] * half + i] * (shape.backwards ? -1 : 1) : 0;
        const double a = x[low], b = x[high];
        y[low] = static_cast<Number>(a * c - b * s);
        y[high] = static_cast<Number>(b * c + a * s);
      }
    }
  }
}

template void rope_reference(const float*, const float*, const float*, const int32_t*, float*,
                             const RopeShape&);
template void rope_reference(const double*, const float*, const float*, const int32_t*, double*,
                             const RopeShape&);

}  // namespace moe::kernels
