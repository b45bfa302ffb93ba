#pragma once
// One pass over a row of logits by a whole block ("online softmax", Milakov and Gimelshein 2018):
// its maximum, the first index of that, and the sum of exp(z - maximum), which is rescaled whenever
// a larger logit comes. A NaN makes the sum NaN; an infinity stays visible in `max`.

#include "kernels/cuda/launch.cuh"

namespace moe::kernels {

inline constexpr int kRowThreads = 512;  // one block a row
inline constexpr int kNoIndex = 0x7fffffff;

struct RowSoftmax {
  float max;
  int index;
  float sum;
};

__device__ inline RowSoftmax empty_softmax() { return {-HUGE_VALF, kNoIndex, 0.0F}; }

__device__ inline void add_logit(RowSoftmax& part, float x, int index) {
  if (x > part.max) {
    part.sum = part.sum * expf(part.max - x) + 1.0F;
    part.max = x;
    part.index = index;
  } else {
    part.sum += x == part.max
                    ? 1.0F
                    : expf(x - part.max);  // equal: exp(-infinity - -infinity) would be NaN
  }
}

__device__ inline RowSoftmax merge(const RowSoftmax& a, const RowSoftmax& b) {
  const bool a_first = a.max > b.max || (a.max == b.max && a.index <= b.index);
  RowSoftmax all = a_first ? a : b;
  all.sum = (a.max == all.max ? a.sum : a.sum * expf(a.max - all.max)) +
            (b.max == all.max ? b.sum : b.sum * expf(b.max - all.max));
  return all;
}

__device__ inline RowSoftmax warp_merge(RowSoftmax part) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    RowSoftmax other = empty_softmax();
    other.max = __shfl_xor_sync(kAllLanes, part.max, step);
    other.index = __shfl_xor_sync(kAllLanes, part.index, step);
    other.sum = __shfl_xor_sync(kAllLanes, part.sum, step);
    part = merge(part, other);
  }
  return part;
}

// Of `row` [count], for all threads of the block alike. `parts`: shared memory, one a warp.
template <int kCount>
__device__ inline RowSoftmax row_softmax(const float* row, int count, RowSoftmax* parts) {
  RowSoftmax part = empty_softmax();
  for (int i = threadIdx.x * kCount; i < count; i += kRowThreads * kCount) {
    const auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      add_logit(part, values.at[k], i + k);
    }
  }
  part = warp_merge(part);
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  if (lane == 0) {
    parts[warp] = part;
  }
  __syncthreads();
  return warp_merge(lane < kRowThreads / kLanes ? parts[lane] : empty_softmax());
}

}  // namespace moe::kernels
