#pragma once
// One pass over a row of logits by a whole block: its largest, where the first of those stands, and
// the sum of exp(z - largest), which is scaled whenever a larger one comes. What is no number makes
// the sum none; an infinity stays visible in `most`.

#include "kernels/cuda/launch.cuh"

namespace moe::kernels {

inline constexpr int kRowThreads = 512;  // one block a row
inline constexpr int kNowhere = 0x7fffffff;

struct RowPart {
  float most;
  int index;
  float sum;
};

__device__ inline RowPart empty_part() { return {-HUGE_VALF, kNowhere, 0.0F}; }

__device__ inline void take_in(RowPart& part, float x, int index) {
  if (x > part.most) {
    part.sum = part.sum * expf(part.most - x) + 1.0F;
    part.most = x;
    part.index = index;
  } else {
    part.sum += x == part.most ? 1.0F : expf(x - part.most);  // equal: -infinity twice is no number
  }
}

__device__ inline RowPart merged(const RowPart& a, const RowPart& b) {
  const bool a_first = a.most > b.most || (a.most == b.most && a.index <= b.index);
  RowPart all = a_first ? a : b;
  all.sum = (a.most == all.most ? a.sum : a.sum * expf(a.most - all.most)) +
            (b.most == all.most ? b.sum : b.sum * expf(b.most - all.most));
  return all;
}

__device__ inline RowPart warp_merged(RowPart part) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    RowPart other = empty_part();
    other.most = __shfl_xor_sync(kAllLanes, part.most, step);
    other.index = __shfl_xor_sync(kAllLanes, part.index, step);
    other.sum = __shfl_xor_sync(kAllLanes, part.sum, step);
    part = merged(part, other);
  }
  return part;
}

// Of `row` [count], for all threads of the block alike. `parts`: shared memory, one a warp.
template <int kCount>
__device__ inline RowPart row_part(const float* row, int count, RowPart* parts) {
  RowPart part = empty_part();
  for (int i = threadIdx.x * kCount; i < count; i += kRowThreads * kCount) {
    const auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      take_in(part, values.at[k], i + k);
    }
  }
  part = warp_merged(part);
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  if (lane == 0) {
    parts[warp] = part;
  }
  __syncthreads();
  return warp_merged(lane < kRowThreads / kLanes ? parts[lane] : empty_part());
}

}  // namespace moe::kernels
