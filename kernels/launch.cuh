#pragma once
// What every kernel file needs to launch: sizes of grids, and loads that widen bf16 to f32.

#include <cuda_bf16.h>

#include <cstdint>

namespace moe::kernels {

inline constexpr int kThreads = 256;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16(value);
}

}  // namespace moe::kernels
