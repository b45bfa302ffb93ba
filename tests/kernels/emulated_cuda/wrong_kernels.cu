#include "kernels/cuda/launch.cuh"
#include "tests/kernels/emulated_cuda/wrong_kernels.h"

namespace moe::test {

namespace {

using kernels::kLanes;
using kernels::launch;

__global__ void vector_kernel(const float* from, float* to) {
  if (threadIdx.x == 5) {
    kernels::store(to, kernels::load<4>(from));
  }
}

__global__ void neighbour_kernel(int32_t* out, bool has_barrier) {
  __shared__ int32_t numbers[32];
  const unsigned warp = threadIdx.x / kLanes, warps = blockDim.x / kLanes;
  if (threadIdx.x % kLanes == 0) {
    numbers[warp] = static_cast<int32_t>(warp);
  }
  if (has_barrier) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  if (threadIdx.x % kLanes == 0) {
    out[warp] = numbers[(warp + 1) % warps];
  }
}

__global__ void add_kernel(int32_t* sum, bool is_atomic) {
  if (threadIdx.x % kLanes != 0) {
    return;
  }
  if (is_atomic) {
    atomicAdd(sum, 1);
  } else {
    *sum = *sum + 1;
  }
}

__global__ void shared_kernel(int32_t* out, bool is_written) {
  __shared__ int32_t number;
  if (is_written && threadIdx.x == 0) {
    number = 7;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *out = number;
  }
}

__global__ void block_number_kernel(int32_t* out) {
  if (threadIdx.x == 0) {
    *out = static_cast<int32_t>(blockIdx.x);
  }
}

__global__ void bytes_kernel(const uint8_t* from, uint8_t* to, int64_t count, bool is_narrow) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    const int64_t at = is_narrow ? static_cast<int64_t>(static_cast<uint32_t>(i)) : i;
    to[at] = from[at];
  }
}

}  // namespace

void copy_vector(const float* from, float* to) {
  launch(vector_kernel, 1, kLanes, nullptr, from, to);
}

void read_neighbour(int warps, int32_t* out, bool has_barrier) {
  launch(neighbour_kernel, 1, warps * kLanes, nullptr, out, has_barrier);
}

void add_one(int warps, int32_t* sum, bool is_atomic) {
  launch(add_kernel, 1, warps * kLanes, nullptr, sum, is_atomic);
}

void read_shared(int32_t* out, bool is_written) {
  launch(shared_kernel, 1, kLanes, nullptr, out, is_written);
}

void write_block_number(int blocks, int32_t* out) {
  launch(block_number_kernel, blocks, kLanes, nullptr, out);
}

void copy_bytes(const uint8_t* from, uint8_t* to, int64_t count, bool is_narrow) {
  launch(bytes_kernel, kernels::ceil_div(count, kernels::kThreads), kernels::kThreads, nullptr,
         from, to, count, is_narrow);
}

}  // namespace moe::test
