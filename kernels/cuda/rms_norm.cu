// rms_norm.h on CUDA. Forward and the gradient of x: one block per row, which is read once from
// memory and once from the L1. Gradient of the weight: each block sums kLanes * kCount columns over
// a strip of rows, then a second kernel adds the strips in order. Bytes per element for f32 x and
// bf16 y: forward 6, gradient of x 10, of the weight 6; with an added bf16 tensor 12, 16 and 6.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/rms_norm.h"

namespace moe::kernels {

namespace {

// Loads elements of x, or of x + added.
template <bool kAdds, int kCount, typename T, typename Added>
__device__ Pack<T, kCount> load_row(const T* x, const Added* added, int64_t at) {
  Pack<T, kCount> values = load<kCount>(x + at);
  if constexpr (kAdds) {
    const auto others = load<kCount>(added + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      values.at[k] += widen(others.at[k]);
    }
  }
  return values;
}

template <typename T, typename Out, bool kAdds, int kCount>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x,           // [rows, width]
                   const float* weight,  // [width]
                   Out* y,               // [rows, width]
                   float* scale,         // [rows]
                   int width, float epsilon,
                   const Out* added,  // [rows, width], only with kAdds
                   T* sum) {          // [rows, width], only with kAdds
  __shared__ float part[kWarps];
  const int64_t first = int64_t{blockIdx.x} * width;
  float squares = 0;
  for (int i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    const auto values = load_row<kAdds, kCount>(x, added, first + i);
    if constexpr (kAdds) {
      store(sum + first + i, values);
    }
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
    const auto values = load_row<kAdds, kCount>(x, added, first + i);
    const auto weights = load<kCount>(weight + i);
    Pack<Out, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = narrow<Out>(widen(values.at[k]) * factor * weights.at[k]);
    }
    store(y + first + i, result);
  }
}

template <typename G, typename T, bool kHasSum, int kCount>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(const G* grad,        // [rows, width]
                          const T* x,           // [rows, width]
                          const float* weight,  // [width]
                          const float* scale,   // [rows]
                          T* grad_x,            // [rows, width]
                          int width,
                          const T* grad_sum,  // [rows, width], only with kHasSum
                          G* grad_added) {    // [rows, width], only with kHasSum
  __shared__ float part[kWarps];
  const int64_t first = int64_t{blockIdx.x} * width;
  const float factor = scale[blockIdx.x];
  float products = 0;  // sum of (dy * weight) * n
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
    Pack<T, kCount> result, others;
    Pack<G, kCount> rounded;
    if constexpr (kHasSum) {
      others = load<kCount>(grad_sum + first + i);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float normed = widen(values.at[k]) * factor;
      result.at[k] = narrow<T>((widen(grads.at[k]) * weights.at[k] - normed * mean) * factor);
      if constexpr (kHasSum) {
        result.at[k] += others.at[k];
        rounded.at[k] = narrow<G>(result.at[k]);
      }
    }
    store(grad_x + first + i, result);
    if constexpr (kHasSum && sizeof(G) < sizeof(T)) {
      store(grad_added + first + i, rounded);
    }
  }
}

// Block (strip, columns): sums dy * n over the rows of the strip, kCount columns per lane.
template <typename G, typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    strip_kernel(const G* grad,       // [rows, width]
                 const T* x,          // [rows, width]
                 const float* scale,  // [rows]
                 float* strips,       // [strip_count, width]
                 int64_t rows, int64_t width, int strip_count) {
  constexpr int kColumns = kLanes * kCount;  // columns of a block
  __shared__ float part[kWarps][kCount][kLanes];
  const int64_t across = ceil_div(width, kColumns);
  const int64_t strip = blockIdx.x / across, first = blockIdx.x % across * kColumns;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t column = first + lane * kCount;
  const int64_t end = rows * (strip + 1) / strip_count;
  float sum[kCount] = {};
  if (column < width) {
    for (int64_t row = rows * strip / strip_count + warp; row < end; row += kWarps) {
      const auto grads = load<kCount>(grad + row * width + column);
      const auto values = load<kCount>(x + row * width + column);
      const float factor = scale[row];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sum[k] += widen(grads.at[k]) * (widen(values.at[k]) * factor);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    part[warp][k][lane] = sum[k];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < width; i += kThreads) {
    float total = 0;
    for (int each = 0; each < kWarps; ++each) {
      total += part[each][i % kCount][i / kCount];
    }
    strips[strip * width + first + i] = total;
  }
}

// Vectors have 16 bytes of the narrower dtype: Out here, G in backward().
template <typename T, typename Out, bool kAdds>
void forward(const RmsNormForwardArgs& args, void* stream) {
  void* sum = args.sum;
  const bool vectors =
      fits_vectors<kWidest<Out>>(args.width, args.x, args.weight, args.y, args.added, sum);
  launch(vectors ? forward_kernel<T, Out, kAdds, kWidest<Out>> : forward_kernel<T, Out, kAdds, 1>,
         args.rows, kThreads, stream, args.x, args.weight, args.y, args.scale, args.width,
         args.epsilon, args.added, sum);
}

template <typename G, typename T, bool kHasSum>
void backward(const RmsNormBackwardArgs& args, void* stream) {
  const void* grad_sum = args.grad_sum;
  const bool vectors = fits_vectors<kWidest<G>>(args.width, args.x, args.weight, args.grad,
                                                args.grad_x, grad_sum, args.grad_added);
  launch(vectors ? input_gradient_kernel<G, T, kHasSum, kWidest<G>>
                 : input_gradient_kernel<G, T, kHasSum, 1>,
         args.rows, kThreads, stream, args.grad, args.x, args.weight, args.scale, args.grad_x,
         args.width, grad_sum, args.grad_added);
  const int strip_count = static_cast<int>(rms_norm_strips(args.rows));
  launch(vectors ? strip_kernel<G, T, kWidest<G>> : strip_kernel<G, T, 1>,
         ceil_div(args.width, kLanes * (vectors ? kWidest<G> : 1)) * strip_count, kThreads, stream,
         args.grad, args.x, args.scale, args.strips, args.rows, args.width, strip_count);
  launch(add_strips_kernel<float>, ceil_div(args.width, kThreads), kThreads, stream, args.strips,
         args.grad_weight, args.width, strip_count);
}

}  // namespace

void rms_norm_forward_cuda(const RmsNormForwardArgs& args, void* stream) {
  const bool adds = args.added != nullptr;
  const auto run_f32 = adds ? forward<float, float, true> : forward<float, float, false>;
  const auto run_to_bf16 =
      adds ? forward<float, __nv_bfloat16, true> : forward<float, __nv_bfloat16, false>;
  const auto run_bf16 = forward<__nv_bfloat16, __nv_bfloat16, false>;
  (args.is_bf16 ? run_bf16 : args.y_is_bf16 ? run_to_bf16 : run_f32)(args, stream);
}

void rms_norm_backward_cuda(const RmsNormBackwardArgs& args, void* stream) {
  const bool has_sum = args.grad_sum != nullptr;
  const auto run_f32 = has_sum ? backward<float, float, true> : backward<float, float, false>;
  const auto run_from_bf16 =
      has_sum ? backward<__nv_bfloat16, float, true> : backward<__nv_bfloat16, float, false>;
  const auto run_bf16 = backward<__nv_bfloat16, __nv_bfloat16, false>;
  (args.is_bf16 ? run_bf16 : args.grad_is_bf16 ? run_from_bf16 : run_f32)(args, stream);
}

}  // namespace moe::kernels
