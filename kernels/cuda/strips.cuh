#pragma once
// Second step of a weight gradient: adds the partial sums of strips of rows in a fixed order.

#include "kernels/cuda/launch.cuh"

namespace moe::kernels {

namespace {

__global__ void add_strips_kernel(const float* strips,  // [strip_count, count]
                                  float* grad_weight,   // [count]
                                  int64_t count, int strip_count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  float sum = 0;
  for (int strip = 0; strip < strip_count; ++strip) {
    sum += strips[strip * count + i];
  }
  grad_weight[i] = sum;
}

}  // namespace

}  // namespace moe::kernels
