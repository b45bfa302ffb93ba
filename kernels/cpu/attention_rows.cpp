#include "kernels/cpu/attention_rows.h"

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

MOE_VECTOR_CLONES float exponentials_below(float* z, int64_t count, float minus) {
  return vector_sum<float>(count,
                           [=](int64_t i) { return z[i] = vector_exp_negative(z[i] - minus); });
}

MOE_VECTOR_CLONES void score_gradients(const float* p, float* dp, int64_t count, float delta) {
  for (int64_t i = 0; i < count; ++i) {
    dp[i] = p[i] * (dp[i] - delta);
  }
}

template <typename Number>
MOE_VECTOR_CLONES void rotate(const Number* __restrict from, int64_t stride, const float* cosine,
                              const float* sine, int64_t length, int64_t width, float scale,
                              float* __restrict to) {
  const int64_t half = width / 2;
  for (int64_t t = 0; t < length; ++t) {
    const Number* x = from + t * stride;
    const float *c = cosine + t * width, *s = sine + t * width;
    float* y = to + t * width;
    for (int64_t i = 0; i < half; ++i) {
      const float low = widen(x[i]), high = widen(x[half + i]);
      y[i] = (low * c[i] - high * s[i]) * scale;
      y[half + i] = (high * c[half + i] + low * s[half + i]) * scale;
    }
  }
}

template <typename Number>
MOE_VECTOR_CLONES void rotate_back(const float* __restrict from, const float* cosine,
                                   const float* sine, int64_t length, int64_t width, float scale,
                                   Number* __restrict to, int64_t stride) {
  const int64_t half = width / 2;
  for (int64_t t = 0; t < length; ++t) {
    const float *y = from + t * width, *c = cosine + t * width, *s = sine + t * width;
    Number* x = to + t * stride;
    for (int64_t i = 0; i < half; ++i) {
      const float low = y[i], high = y[half + i];
      narrow_to((low * c[i] + high * s[half + i]) * scale, x[i]);
      narrow_to((high * c[half + i] - low * s[i]) * scale, x[half + i]);
    }
  }
}

template void rotate(const float*, int64_t, const float*, const float*, int64_t, int64_t, float,
                     float*);
template void rotate(const uint16_t*, int64_t, const float*, const float*, int64_t, int64_t, float,
                     float*);
template void rotate_back(const float*, const float*, const float*, int64_t, int64_t, float, float*,
                          int64_t);
template void rotate_back(const float*, const float*, const float*, int64_t, int64_t, float,
                          uint16_t*, int64_t);

}  // namespace moe::kernels
