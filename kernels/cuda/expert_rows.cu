// expert_rows.h on CUDA. Rows move a warp a row, its lanes along the width; what has to be summed
// for one token is summed by one warp, so that every result is the same each time. Bound by memory.

#include <cstddef>
#include <stdexcept>

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/expert_rows.h"

namespace moe::kernels {

namespace {

constexpr int kWarps = kThreads / kLanes;

__device__ inline int64_t warp_of_grid() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
}

// A thread a row of the plan. Every block adds up the few loads for itself.
__global__ void __launch_bounds__(kThreads)
    lay_out_kernel(LayoutShape shape, PlanRows plan, LayoutMemory to) {
  __shared__ int32_t shift[kMaxLayoutExperts];  // from a row's number to its place
  const int experts = static_cast<int>(shape.experts);
  for (int expert = threadIdx.x; expert < experts; expert += kThreads) {
    shift[expert] = static_cast<int32_t>(plan.expert_rows[expert]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t row = 0, place = 0;
    for (int expert = 0; expert < experts; ++expert) {
      const int32_t rows = shift[expert];
      shift[expert] = place - row;
      row += rows;
      place += static_cast<int32_t>(ceil_div(rows, kSegmentRows) * kSegmentRows);
      if (blockIdx.x == 0) {
        to.ends[expert] = place;
      }
    }
  }
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= shape.rows || plan.expert[row] >= shape.experts) {
    return;
  }
  const int64_t expert = plan.expert[row], place = row + shift[expert];
  const int64_t cell = plan.token[row] * shape.columns + plan.choice[row];
  to.origin[place] = static_cast<int32_t>(cell);
  to.position[cell] = static_cast<int32_t>(place);
  to.expert[cell] = static_cast<int32_t>(expert);
  to.times[cell] = static_cast<int32_t>(plan.count[row]);
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(RowsShape shape, const int32_t* __restrict__ origin,
                  const int32_t* __restrict__ ends, const T* __restrict__ x, T* __restrict__ rows) {
  const int64_t row = warp_of_grid();
  if (row >= ends[shape.experts - 1]) {
    return;
  }
  const int cell = origin[row];
  const T* from = x + (cell < 0 ? 0 : cell / shape.columns * shape.width);
  T* to = rows + row * shape.width;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    Pack<T, kCount> values = {};
    if (cell >= 0) {
      values = load<kCount>(from + d);
    }
    store(to + d, values);
  }
}

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(RowsShape shape, const int32_t* __restrict__ position,
                   const float* __restrict__ weight,  // may be null
                   const T* __restrict__ rows, Out* __restrict__ y) {
  const int64_t token = warp_of_grid();
  if (token >= shape.tokens) {
    return;
  }
  const int64_t first = token * shape.columns, columns = shape.columns;
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    float sum[kCount] = {};
    for (int64_t cell = first; cell < first + columns; ++cell) {
      const int64_t row = position[cell];
      if (row >= 0) {
        const float factor = weight == nullptr ? 1.0F : weight[cell];
        const auto values = load<kCount>(rows + row * shape.width + d);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          sum[k] += factor * widen(values.at[k]);
        }
      }
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = narrow<Out>(sum[k]);
    }
    store(y + token * shape.width + d, result);
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(RowsShape shape, const int32_t* __restrict__ origin,
                    const int32_t* __restrict__ ends, const float* __restrict__ weight,
                    const T* __restrict__ rows, const float* __restrict__ grad_y,
                    T* __restrict__ grad_rows, float* __restrict__ grad_weight) {
  const int64_t row = warp_of_grid();
  if (row >= ends[shape.experts - 1]) {
    return;  // the whole warp
  }
  const int cell = origin[row];
  const float factor = cell < 0 ? 0.0F : weight[cell];
  const float* upstream = grad_y + (cell < 0 ? 0 : cell / shape.columns * shape.width);
  const int64_t first = row * shape.width;
  float dot = 0;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    Pack<T, kCount> result = {};
    if (cell >= 0) {
      const auto values = load<kCount>(rows + first + d);
      const auto grads = load<kCount>(upstream + d);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        result.at[k] = narrow<T>(factor * grads.at[k]);
        dot += widen(values.at[k]) * grads.at[k];
      }
    }
    store(grad_rows + first + d, result);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % kLanes == 0 && cell >= 0) {
    grad_weight[cell] = dot;
  }
}

template <typename T>
void gather(const RowsShape& shape, const int32_t* origin, const int32_t* ends, const T* x, T* rows,
            void* stream) {
  const bool vectors = fits_vectors(shape.width, x, rows);
  launch(vectors ? gather_kernel<T, kVector> : gather_kernel<T, 1>, ceil_div(shape.rows, kWarps),
         kThreads, stream, shape, origin, ends, x, rows);
}

template <typename T, typename Out>
void combine(const RowsShape& shape, const int32_t* position, const float* weight, const T* rows,
             Out* y, void* stream) {
  const bool vectors = fits_vectors(shape.width, rows, y);
  launch(vectors ? combine_kernel<T, Out, kVector> : combine_kernel<T, Out, 1>,
         ceil_div(shape.tokens, kWarps), kThreads, stream, shape, position, weight, rows, y);
}

}  // namespace

void lay_out_cuda(const LayoutShape& shape, const PlanRows& plan, const LayoutMemory& to,
                  void* stream) {
  if (shape.experts > kMaxLayoutExperts) {
    throw std::runtime_error("rows are laid out for at most 1024 experts");
  }
  const auto fill = [&](int32_t* memory, int byte, int64_t count) {
    CUDA_CHECK(cudaMemsetAsync(memory, byte, sizeof(int32_t) * static_cast<size_t>(count),
                               static_cast<cudaStream_t>(stream)));
  };
  const int64_t cells = shape.tokens * shape.columns;
  fill(to.origin, 0xff, padded_rows(shape.rows, shape.experts));  // -1
  fill(to.position, 0xff, cells);
  fill(to.expert, 0xff, cells);
  fill(to.times, 0, cells);
  fill(to.ends, 0, shape.experts);
  launch(lay_out_kernel, ceil_div(shape.rows, kThreads), kThreads, stream, shape, plan, to);
}

void gather_rows_cuda(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                      const void* x, void* rows, bool is_bf16, void* stream) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    gather(shape, origin, ends, static_cast<const T*>(x), static_cast<T*>(rows), stream);
  };
  is_bf16 ? run(__nv_bfloat16{}) : run(float{});
}

void combine_rows_cuda(const RowsShape& shape, const int32_t* position, const float* weight,
                       const void* rows, void* y, bool is_bf16, bool y_is_bf16, void* stream) {
  using Half = __nv_bfloat16;
  const auto* half_rows = static_cast<const Half*>(rows);
  if (is_bf16 && y_is_bf16) {
    combine(shape, position, weight, half_rows, static_cast<Half*>(y), stream);
  } else if (is_bf16) {
    combine(shape, position, weight, half_rows, static_cast<float*>(y), stream);
  } else {
    combine(shape, position, weight, static_cast<const float*>(rows), static_cast<float*>(y),
            stream);
  }
}

void combine_rows_backward_cuda(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                                const float* weight, const void* rows, const float* grad_y,
                                void* grad_rows, float* grad_weight, bool is_bf16, void* stream) {
  CUDA_CHECK(cudaMemsetAsync(grad_weight, 0,
                             sizeof(float) * static_cast<size_t>(shape.tokens * shape.columns),
                             static_cast<cudaStream_t>(stream)));
  const auto run = [&](auto type) {
    using T = decltype(type);
    const bool vectors = fits_vectors(shape.width, rows, grad_y, grad_rows);
    launch(vectors ? backward_kernel<T, kVector> : backward_kernel<T, 1>,
           ceil_div(shape.rows, kWarps), kThreads, stream, shape, origin, ends, weight,
           static_cast<const T*>(rows), grad_y, static_cast<T*>(grad_rows), grad_weight);
  };
  is_bf16 ? run(__nv_bfloat16{}) : run(float{});
}

}  // namespace moe::kernels
