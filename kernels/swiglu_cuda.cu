// swiglu.h on CUDA: one thread an output element, neighbours in a warp on neighbouring columns, so
// that every load and store is coalesced. Bound by memory: 3 reads or writes forward, 5 backward,
// per output element.

#include "kernels/check.h"
#include "kernels/launch.cuh"

namespace moe::kernels {

namespace {

template <typename T>
__global__ void forward_kernel(const T* hidden,  // [rows, 2 * width]
                               T* out,           // [rows, width]
                               int64_t rows,
                               int64_t width) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= rows * width) {
    return;
  }
  const int64_t base = index / width * 2 * width + index % width;
  const float gate = widen(hidden[base]);
  const float up = widen(hidden[base + width]);
  out[index] = narrow<T>(gate / (1.0f + expf(-gate)) * up);
}

template <typename T>
__global__ void backward_kernel(const T* grad_out,  // [rows, width]
                                const T* hidden,    // [rows, 2 * width]
                                T* grad_hidden,     // [rows, 2 * width]
                                int64_t rows,
                                int64_t width) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= rows * width) {
    return;
  }
  const int64_t base = index / width * 2 * width + index % width;
  const float gate = widen(hidden[base]);
  const float up = widen(hidden[base + width]);
  const float grad = widen(grad_out[index]);
  const float sigmoid = 1.0f / (1.0f + expf(-gate));
  grad_hidden[base] = narrow<T>(grad * up * sigmoid * (1.0f + gate * (1.0f - sigmoid)));
  grad_hidden[base + width] = narrow<T>(grad * gate * sigmoid);
}

template <typename T>
void launch_forward(
    const void* hidden, void* out, int64_t rows, int64_t width, cudaStream_t stream) {
  forward_kernel<T><<<ceil_div(rows * width, kThreads), kThreads, 0, stream>>>(
      static_cast<const T*>(hidden), static_cast<T*>(out), rows, width);
  CUDA_CHECK(cudaGetLastError());
}

template <typename T>
void launch_backward(const void* grad_out,
                     const void* hidden,
                     void* grad_hidden,
                     int64_t rows,
                     int64_t width,
                     cudaStream_t stream) {
  backward_kernel<T>
      <<<ceil_div(rows * width, kThreads), kThreads, 0, stream>>>(static_cast<const T*>(grad_out),
                                                                  static_cast<const T*>(hidden),
                                                                  static_cast<T*>(grad_hidden),
                                                                  rows,
                                                                  width);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void swiglu_forward_cuda(
    const void* hidden, void* out, int64_t rows, int64_t width, bool is_bf16, void* stream) {
  if (rows * width == 0) {
    return;
  }
  const auto launch = is_bf16 ? launch_forward<__nv_bfloat16> : launch_forward<float>;
  launch(hidden, out, rows, width, static_cast<cudaStream_t>(stream));
}

void swiglu_backward_cuda(const void* grad_out,
                          const void* hidden,
                          void* grad_hidden,
                          int64_t rows,
                          int64_t width,
                          bool is_bf16,
                          void* stream) {
  if (rows * width == 0) {
    return;
  }
  const auto launch = is_bf16 ? launch_backward<__nv_bfloat16> : launch_backward<float>;
  launch(grad_out, hidden, grad_hidden, rows, width, static_cast<cudaStream_t>(stream));
}

}  // namespace moe::kernels
