// One pass a row, no temporaries: the vector code is the compiler's (vector_math.h).

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/swiglu.h"
#include "kernels/vector_math.h"

namespace moe::kernels {

namespace {

template <typename Number>
MOE_VECTOR_CLONES void forward_row(const Number* hidden, Number* out, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float gate = widen(hidden[i]), up = widen(hidden[width + i]);
    narrow_to(gate / (1.0F + vector_exp(-gate)) * up, out[i]);
  }
}

template <typename Number>
MOE_VECTOR_CLONES void backward_row(const Number* grad_out,
                                    const Number* hidden,
                                    Number* grad,
                                    int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float gate = widen(hidden[i]), up = widen(hidden[width + i]), dy = widen(grad_out[i]);
    const float sigmoid = 1.0F / (1.0F + vector_exp(-gate));
    narrow_to(dy * up * sigmoid * (1.0F + gate * (1.0F - sigmoid)), grad[i]);
    narrow_to(dy * gate * sigmoid, grad[width + i]);
  }
}

// Rows that one thread takes at least.
int64_t grain(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

}  // namespace

template <typename Number>
void swiglu_forward_cpu(const Number* hidden, Number* out, int64_t rows, int64_t width) {
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      forward_row(hidden + row * 2 * width, out + row * width, width);
    }
  });
}

template <typename Number>
void swiglu_backward_cpu(
    const Number* grad_out, const Number* hidden, Number* grad, int64_t rows, int64_t width) {
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      backward_row(grad_out + row * width, hidden + row * 2 * width, grad + row * 2 * width, width);
    }
  });
}

template void swiglu_forward_cpu(const float*, float*, int64_t, int64_t);
template void swiglu_forward_cpu(const uint16_t*, uint16_t*, int64_t, int64_t);
template void swiglu_backward_cpu(const float*, const float*, float*, int64_t, int64_t);
template void swiglu_backward_cpu(const uint16_t*, const uint16_t*, uint16_t*, int64_t, int64_t);

}  // namespace moe::kernels
