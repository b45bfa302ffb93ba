// swiglu.h on CUDA: one thread a vector of four output elements where the width allows, else one a
// single element; neighbours in a warp on neighbouring columns, so that every load and store is
// coalesced. Bound by memory: 3 reads or writes forward, 5 backward, per output element.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/swiglu.h"

namespace moe::kernels {

namespace {

// Where a thread's first output element is, in units of vectors.
struct Where {
  int64_t row;
  int column;
  bool is_inside;
};

template <int kCount>
__device__ Where where(int64_t rows, int64_t width, const int32_t* used) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t across = width / kCount;
  const int64_t row = index / across;
  const bool is_used = used == nullptr || row < *used;
  return {row, static_cast<int>(index - row * across) * kCount, row < rows && is_used};
}

template <typename T, int kCount>
__global__ void forward_kernel(const T* hidden,  // [rows, 2 * width]
                               T* out,           // [rows, width]
                               int64_t rows, int64_t width, const int32_t* used) {
  const Where at = where<kCount>(rows, width, used);
  if (!at.is_inside) {
    return;
  }
  const int64_t base = at.row * 2 * width + at.column;
  const auto gates = load<kCount>(hidden + base), ups = load<kCount>(hidden + base + width);
  Pack<T, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float gate = widen(gates.at[i]), up = widen(ups.at[i]);
    result.at[i] = narrow<T>(gate / (1.0F + expf(-gate)) * up);
  }
  store(out + at.row * width + at.column, result);
}

template <typename T, int kCount>
__global__ void backward_kernel(const T* grad_out,  // [rows, width]
                                const T* hidden,    // [rows, 2 * width]
                                T* grad_hidden,     // [rows, 2 * width]
                                int64_t rows, int64_t width, const int32_t* used) {
  const Where at = where<kCount>(rows, width, used);
  if (!at.is_inside) {
    return;
  }
  const int64_t base = at.row * 2 * width + at.column;
  const auto gates = load<kCount>(hidden + base), ups = load<kCount>(hidden + base + width);
  const auto grads = load<kCount>(grad_out + at.row * width + at.column);
  Pack<T, kCount> grad_gate, grad_up;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float gate = widen(gates.at[i]), up = widen(ups.at[i]), grad = widen(grads.at[i]);
    const float sigmoid = 1.0F / (1.0F + expf(-gate));
    grad_gate.at[i] = narrow<T>(grad * up * sigmoid * (1.0F + gate * (1.0F - sigmoid)));
    grad_up.at[i] = narrow<T>(grad * gate * sigmoid);
  }
  store(grad_hidden + base, grad_gate);
  store(grad_hidden + base + width, grad_up);
}

template <typename T>
void forward(const T* hidden, T* out, int64_t rows, int64_t width, const int32_t* used,
             void* stream) {
  const bool vectors = fits_vectors(width, hidden, out);
  const int64_t threads = rows * width / (vectors ? kVector : 1);
  launch(vectors ? forward_kernel<T, kVector> : forward_kernel<T, 1>, ceil_div(threads, kThreads),
         kThreads, stream, hidden, out, rows, width, used);
}

template <typename T>
void backward(const T* grad_out, const T* hidden, T* grad_hidden, int64_t rows, int64_t width,
              const int32_t* used, void* stream) {
  const bool vectors = fits_vectors(width, grad_out, hidden, grad_hidden);
  const int64_t threads = rows * width / (vectors ? kVector : 1);
  launch(vectors ? backward_kernel<T, kVector> : backward_kernel<T, 1>, ceil_div(threads, kThreads),
         kThreads, stream, grad_out, hidden, grad_hidden, rows, width, used);
}

}  // namespace

void swiglu_forward_cuda(const void* hidden, void* out, int64_t rows, int64_t width,
                         const int32_t* used, bool is_bf16, void* stream) {
  if (is_bf16) {
    using T = __nv_bfloat16;
    forward(static_cast<const T*>(hidden), static_cast<T*>(out), rows, width, used, stream);
  } else {
    forward(static_cast<const float*>(hidden), static_cast<float*>(out), rows, width, used, stream);
  }
}

void swiglu_backward_cuda(const void* grad_out, const void* hidden, void* grad_hidden, int64_t rows,
                          int64_t width, const int32_t* used, bool is_bf16, void* stream) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    backward(static_cast<const T*>(grad_out), static_cast<const T*>(hidden),
             static_cast<T*>(grad_hidden), rows, width, used, stream);
  };
  is_bf16 ? run(__nv_bfloat16{}) : run(float{});
}

}  // namespace moe::kernels
