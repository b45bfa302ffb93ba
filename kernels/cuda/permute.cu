// permute.h on CUDA: one warp per row or token, with lanes along the width. One warp sums all rows
// of a token, so that results are deterministic. The kernels are bound by memory bandwidth.

#include <cstddef>

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/permute.h"

namespace moe::kernels {

namespace {

__device__ inline int64_t warp_of_grid() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
}

__device__ inline bool is_used(int64_t row, const PermuteShape& shape, const int32_t* used) {
  return row < shape.rows && (used == nullptr || row < *used);
}

// One thread per row of the plan. Each block recomputes the offsets of all segments.
__global__ void __launch_bounds__(kThreads) segment_kernel(SegmentRowsArgs args) {
  __shared__ int32_t shift[kMaxSegmentExperts];  // row in segments - row of the plan
  const int experts = static_cast<int>(args.experts);
  for (int expert = threadIdx.x; expert < experts; expert += kThreads) {
    shift[expert] = static_cast<int32_t>(args.tokens_per_expert[expert]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t plan_row = 0, segment = 0;
    for (int expert = 0; expert < experts; ++expert) {
      const int32_t rows = shift[expert];
      shift[expert] = segment - plan_row;
      plan_row += rows;
      segment += static_cast<int32_t>(ceil_div(rows, kSegmentRows) * kSegmentRows);
      if (blockIdx.x == 0) {
        args.ends[expert] = segment;
      }
    }
  }
  __syncthreads();
  const int64_t plan_row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (plan_row >= args.plan_rows) {
    return;
  }
  const int64_t expert = args.expert[plan_row];
  if (expert >= args.experts) {
    args.row_of_plan[plan_row] = segmented_rows(args.plan_rows, args.experts);
    return;
  }
  const int64_t row = plan_row + shift[expert], token = args.token[plan_row];
  args.row_of_plan[plan_row] = row;
  args.row_token[row] = token;
  args.row_of_token[token * args.columns + args.choice[plan_row]] = static_cast<int32_t>(row);
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(PermuteShape shape, const int64_t* __restrict__ token_of_row,
                   const int32_t* used, const T* __restrict__ x, T* __restrict__ rows) {
  const int64_t row = warp_of_grid();
  if (!is_used(row, shape, used)) {
    return;
  }
  const int64_t token = token_of_row[row];
  const T* from = x + (token < 0 ? 0 : token) * shape.width;
  T* to = rows + row * shape.width;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    Pack<T, kCount> values = {};
    if (token >= 0) {
      values = load<kCount>(from + d);
    }
    store(to + d, values);
  }
}

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kThreads)
    unpermute_kernel(PermuteShape shape, const int32_t* __restrict__ row_of_token,
                     const float* __restrict__ weight,    // may be null
                     const float* __restrict__ residual,  // [tokens, width], may be null
                     const T* __restrict__ rows, Out* __restrict__ y) {
  const int64_t token = warp_of_grid();
  if (token >= shape.tokens) {
    return;
  }
  const int64_t first = token * shape.columns, columns = shape.columns;
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    float sum[kCount] = {};
    for (int64_t cell = first; cell < first + columns; ++cell) {
      const int64_t row = row_of_token[cell];
      if (row >= 0) {
        const float factor = weight == nullptr ? 1.0F : weight[row];
        const auto values = load<kCount>(rows + row * shape.width + d);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          sum[k] += factor * widen(values.at[k]);
        }
      }
    }
    Pack<float, kCount> before = {};
    if (residual != nullptr) {
      before = load<kCount>(residual + token * shape.width + d);
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = narrow<Out>(before.at[k] + sum[k]);
    }
    store(y + token * shape.width + d, result);
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(PermuteShape shape, const int64_t* __restrict__ token_of_row,
                    const int32_t* used, const float* __restrict__ weight,
                    const T* __restrict__ rows, const float* __restrict__ grad_y,
                    T* __restrict__ grad_rows, float* __restrict__ grad_weight) {
  const int64_t row = warp_of_grid();
  if (!is_used(row, shape, used)) {
    return;  // warp-uniform
  }
  const int64_t token = token_of_row[row];
  const float factor = token < 0 ? 0.0F : weight[row];
  const float* upstream = grad_y + (token < 0 ? 0 : token) * shape.width;
  const int64_t first = row * shape.width;
  float dot = 0;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kLanes * kCount; d < shape.width; d += kLanes * kCount) {
    Pack<T, kCount> result = {};
    if (token >= 0) {
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
  if (threadIdx.x % kLanes == 0) {
    grad_weight[row] = dot;
  }
}

template <typename T>
void permute(const PermuteArgs& args, void* stream) {
  const bool vectors = fits_vectors<kWidest<T>>(args.shape.width, args.x, args.rows);
  launch(vectors ? permute_kernel<T, kWidest<T>> : permute_kernel<T, 1>,
         ceil_div(args.shape.rows, kWarps), kThreads, stream, args.shape, args.token, args.used,
         args.x, args.rows);
}

template <typename T, typename Out>
void unpermute(const UnpermuteArgs& args, void* stream) {
  const bool vectors = fits_vectors<kWidest<T>>(args.shape.width, args.rows, args.y, args.residual);
  launch(vectors ? unpermute_kernel<T, Out, kWidest<T>> : unpermute_kernel<T, Out, 1>,
         ceil_div(args.shape.tokens, kWarps), kThreads, stream, args.shape, args.row_of_token,
         args.is_weighted ? args.weight : nullptr, args.residual, args.rows, args.y);
}

template <typename T>
void backward(const UnpermuteBackwardArgs& args, void* stream) {
  const bool vectors =
      fits_vectors<kWidest<T>>(args.shape.width, args.rows, args.grad_y, args.grad_rows);
  launch(vectors ? backward_kernel<T, kWidest<T>> : backward_kernel<T, 1>,
         ceil_div(args.shape.rows, kWarps), kThreads, stream, args.shape, args.token, args.used,
         args.weight, args.rows, args.grad_y, args.grad_rows, args.grad_weight);
}

}  // namespace

void segment_rows_cuda(const SegmentRowsArgs& args, void* stream) {
  if (args.experts > kMaxSegmentExperts) {
    throw std::runtime_error("segment_rows supports at most 1024 experts");
  }
  const int64_t rows = segmented_rows(args.plan_rows, args.experts);
  set_bytes(args.row_token, 0xff, rows, stream);                           // -1
  set_bytes(args.row_of_token, 0xff, args.tokens * args.columns, stream);  // -1
  set_bytes(args.ends, 0, args.experts, stream);
  launch(segment_kernel, ceil_div(args.plan_rows, kThreads), kThreads, stream, args);
}

void permute_cuda(const PermuteArgs& args, void* stream) {
  args.is_bf16 ? permute<__nv_bfloat16>(args, stream) : permute<float>(args, stream);
}

void unpermute_cuda(const UnpermuteArgs& args, void* stream) {
  if (!args.is_bf16) {
    unpermute<float, float>(args, stream);
  } else if (args.is_weighted) {
    unpermute<__nv_bfloat16, float>(args, stream);
  } else {
    unpermute<__nv_bfloat16, __nv_bfloat16>(args, stream);
  }
}

void unpermute_backward_cuda(const UnpermuteBackwardArgs& args, void* stream) {
  args.is_bf16 ? backward<__nv_bfloat16>(args, stream) : backward<float>(args, stream);
}

}  // namespace moe::kernels
