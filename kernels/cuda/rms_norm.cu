// rms_norm.h on CUDA. Forward and the gradient of x: one block a row, which is read from memory
// once and a second time from the L1. The gradient of the weight is a sum down the columns: blocks
// take 32 columns of a strip of rows each, a second kernel adds the strips in their order, so that
// the sum is the same every time.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/rms_norm.h"

namespace moe::kernels {

namespace {

constexpr int kWarps = kThreads / kLanes;

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* x,           // [rows, width]
                                                           const float* weight,  // [width]
                                                           Out* y,               // [rows, width]
                                                           float* scale,         // [rows]
                                                           int width, float epsilon) {
  __shared__ float part[kWarps];
  const T* row = x + int64_t{blockIdx.x} * width;
  float squares = 0;
  for (int i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    const auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float value = widen(values.at[k]);
      squares += value * value;
    }
  }
  const float mean = block_sum(squares, part) / static_cast<float>(width);
  const float factor = 1.0F / sqrtf(mean + epsilon);
  if (threadIdx.x == 0) {
    scale[blockIdx.x] = factor;
  }
  for (int i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    const auto values = load<kCount>(row + i);
    const auto weights = load<kCount>(weight + i);
    Pack<Out, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = narrow<Out>(widen(values.at[k]) * factor * weights.at[k]);
    }
    store(y + int64_t{blockIdx.x} * width + i, result);
  }
}

template <typename G, typename T, int kCount>
__global__ void __launch_bounds__(kThreads) input_gradient_kernel(const G* grad,  // [rows, width]
                                                                  const T* x,     // [rows, width]
                                                                  const float* weight,  // [width]
                                                                  const float* scale,   // [rows]
                                                                  T* grad_x,  // [rows, width]
                                                                  int width) {
  __shared__ float part[kWarps];
  const int64_t first = int64_t{blockIdx.x} * width;
  const float factor = scale[blockIdx.x];
  float products = 0;  // of (dy * weight) * n
  for (int i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    const auto values = load<kCount>(x + first + i);
    const auto grads = load<kCount>(grad + first + i);
    const auto weights = load<kCount>(weight + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      products += widen(grads.at[k]) * weights.at[k] * (widen(values.at[k]) * factor);
    }
  }
  const float mean = block_sum(products, part) / static_cast<float>(width);
  for (int i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    const auto values = load<kCount>(x + first + i);
    const auto grads = load<kCount>(grad + first + i);
    const auto weights = load<kCount>(weight + i);
    Pack<T, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float normed = widen(values.at[k]) * factor;
      result.at[k] = narrow<T>((widen(grads.at[k]) * weights.at[k] - normed * mean) * factor);
    }
    store(grad_x + first + i, result);
  }
}

// Block (strip, columns): the sum of dy * n over the strip's rows, a lane a column.
template <typename G, typename T>
__global__ void __launch_bounds__(kThreads)
    strip_kernel(const G* grad,       // [rows, width]
                 const T* x,          // [rows, width]
                 const float* scale,  // [rows]
                 float* strips,       // [strip_count, width]
                 int64_t rows, int64_t width, int strip_count) {
  __shared__ float part[kWarps][kLanes];
  const int64_t across = ceil_div(width, kLanes);
  const int64_t strip = blockIdx.x / across;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t column = blockIdx.x % across * kLanes + lane;
  const int64_t end = rows * (strip + 1) / strip_count;
  float sum = 0;
  if (column < width) {
    for (int64_t row = rows * strip / strip_count + warp; row < end; row += kWarps) {
      const int64_t at = row * width + column;
      sum += widen(grad[at]) * (widen(x[at]) * scale[row]);
    }
  }
  part[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < width) {
    for (int other = 1; other < kWarps; ++other) {
      sum += part[other][lane];
    }
    strips[strip * width + column] = sum;
  }
}

__global__ void add_strips_kernel(const float* strips,  // [strip_count, width]
                                  float* grad_weight,   // [width]
                                  int64_t width, int strip_count) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= width) {
    return;
  }
  float sum = 0;
  for (int strip = 0; strip < strip_count; ++strip) {
    sum += strips[strip * width + column];
  }
  grad_weight[column] = sum;
}

// Out or G, the narrower: 16 bytes of it at once.
template <typename T, typename Out>
void forward(const RmsNormForwardArgs& args, void* stream) {
  const auto* x = static_cast<const T*>(args.x);
  auto* y = static_cast<Out*>(args.y);
  const bool vectors = fits_vectors<kWidest<Out>>(args.width, x, args.weight, y);
  launch(vectors ? forward_kernel<T, Out, kWidest<Out>> : forward_kernel<T, Out, 1>, args.rows,
         kThreads, stream, x, args.weight, y, args.scale, static_cast<int>(args.width),
         static_cast<float>(args.epsilon));
}

template <typename G, typename T>
void backward(const RmsNormBackwardArgs& args, void* stream) {
  const auto* grad = static_cast<const G*>(args.grad);
  const auto* x = static_cast<const T*>(args.x);
  auto* grad_x = static_cast<T*>(args.grad_x);
  const bool vectors = fits_vectors<kWidest<G>>(args.width, x, args.weight, grad, grad_x);
  launch(vectors ? input_gradient_kernel<G, T, kWidest<G>> : input_gradient_kernel<G, T, 1>,
         args.rows, kThreads, stream, grad, x, args.weight, args.scale, grad_x,
         static_cast<int>(args.width));
  const int strip_count = static_cast<int>(rms_norm_strips(args.rows));
  launch(strip_kernel<G, T>, ceil_div(args.width, kLanes) * strip_count, kThreads, stream, grad, x,
         args.scale, args.strips, args.rows, args.width, strip_count);
  launch(add_strips_kernel, ceil_div(args.width, kThreads), kThreads, stream, args.strips,
         args.grad_weight, args.width, strip_count);
}

}  // namespace

void rms_norm_forward_cuda(const RmsNormForwardArgs& args, void* stream) {
  if (args.is_bf16) {
    forward<__nv_bfloat16, __nv_bfloat16>(args, stream);
  } else if (args.y_is_bf16) {
    forward<float, __nv_bfloat16>(args, stream);
  } else {
    forward<float, float>(args, stream);
  }
}

void rms_norm_backward_cuda(const RmsNormBackwardArgs& args, void* stream) {
  if (args.is_bf16) {
    backward<__nv_bfloat16, __nv_bfloat16>(args, stream);
  } else if (args.grad_is_bf16) {
    backward<__nv_bfloat16, float>(args, stream);
  } else {
    backward<float, float>(args, stream);
  }
}

}  // namespace moe::kernels
