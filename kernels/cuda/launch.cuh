#pragma once
// Kernel launches, vector loads and stores, conversion between bf16 and f32, reductions (warp,
// block, strips of rows), counters of a block. Blocks are one-dimensional, with 32 n threads.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

// Throws std::runtime_error with location, command and CUDA error if `command` fails.
#define CUDA_CHECK(command)                                                                    \
  do {                                                                                         \
    const cudaError_t cuda_check_status = (command);                                           \
    if (cuda_check_status != cudaSuccess) {                                                    \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + \
                               #command + ": " + cudaGetErrorString(cuda_check_status));       \
    }                                                                                          \
  } while (false)

namespace moe::kernels {

inline constexpr int kThreads = 256;
inline constexpr int kLanes = 32;
inline constexpr int kWarps = kThreads / kLanes;
inline constexpr unsigned kAllLanes = 0xffffffffU;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs kernel<<<blocks, threads, 0, stream>>>(arguments...) if blocks > 0. Arguments are converted
// to the parameter types by static_cast: void* to T*, int64_t to int. Does not use the <<<>>>
// syntax, so that a host compiler can compile the file (tests/support/emulated_cuda).
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, void* stream,
            Arguments... arguments) {
  if (blocks == 0) {
    return;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim.x = static_cast<unsigned>(blocks);
  config.blockDim.x = static_cast<unsigned>(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// Sets each byte of `count` elements in device memory to `byte`, on the stream.
template <typename T>
void set_bytes(T* memory, int byte, int64_t count, void* stream) {
  CUDA_CHECK(cudaMemsetAsync(memory, byte, static_cast<size_t>(count) * sizeof(T),
                             static_cast<cudaStream_t>(stream)));
}

// Returns the instance of a kernel with 1, 2, 4 or 8 experts per lane. Throws std::runtime_error
// for more than 256 experts.
template <typename Kernel>
Kernel for_experts(int64_t experts, Kernel up_to_32, Kernel up_to_64, Kernel up_to_128,
                   Kernel up_to_256) {
  if (experts > 256) {
    throw std::runtime_error("router kernels on a GPU support at most 256 experts, got " +
                             std::to_string(experts));
  }
  return experts <= 32    ? up_to_32
         : experts <= 64  ? up_to_64
         : experts <= 128 ? up_to_128
                          : up_to_256;
}

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

// kCount elements that one thread loads or stores at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

template <int kCount, typename T>
__device__ inline Pack<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ inline void store(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

inline constexpr int kVector = 4;  // 16 bytes of f32, 8 of bf16
// Returns true if rows of `width` elements at these pointers can be accessed in vectors of kCount
// elements.
template <int kCount = kVector, typename... Pointers>
bool fits_vectors(int64_t width, Pointers... pointers) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return width % kCount == 0 && (aligned(pointers) && ...);
}

// Number of elements in 16 bytes, the maximum of one load or store.
template <typename T>
inline constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

template <typename Number>
__device__ inline Number warp_sum(Number value) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

template <typename Number>
__device__ inline Number warp_max(Number value) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const Number other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}

// Returns the sum over all threads of the block; all threads must call and get the same bits.
// `part`: shared memory, one element per warp; reusable after the next barrier.
template <typename Number>
__device__ inline Number block_sum(Number value, Number* part) {
  value = warp_sum(value);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % kLanes == 0) {
    part[threadIdx.x / kLanes] = value;
  }
  __syncthreads();
  Number total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kLanes; ++warp) {
    total += part[warp];
  }
  return total;
}

// Returns the number of threads with a lower index whose `flag` is true, and sets `total` to the
// number in the block. All threads must call. `part` as in block_sum().
__device__ inline int count_before(bool flag, int* part, int* total) {
  const unsigned votes = __ballot_sync(kAllLanes, flag);
  const unsigned lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __syncthreads();
  if (lane == 0) {
    part[warp] = __popc(votes);
  }
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1)), all = 0;
  for (unsigned other = 0; other < blockDim.x / kLanes; ++other) {
    before += other < warp ? part[other] : 0;
    all += part[other];
  }
  *total = all;
  return before;
}

// Second step of a weight gradient: adds the partial sums of strips of rows in a fixed order.
template <typename Number>
__global__ void add_strips_kernel(const Number* strips,  // [strip_count, count]
                                  Number* total,         // [count]
                                  int64_t count, int strip_count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  Number sum = 0;
  for (int strip = 0; strip < strip_count; ++strip) {
    sum += strips[strip * count + i];
  }
  total[i] = sum;
}

inline constexpr int kSharedCounts = 2048;

// Counters of a block, in shared memory if they fit. end() adds them to the counters in global
// memory. All threads of the block must call begin() and end().
template <typename Count>
struct BlockCounts {
  int32_t* shared;  // [kSharedCounts]
  Count* total;     // [cells] in global memory
  int cells;

  __device__ bool fits() const { return cells <= kSharedCounts; }
  __device__ void begin() const {
    for (int i = threadIdx.x; fits() && i < cells; i += kThreads) {
      shared[i] = 0;
    }
    __syncthreads();
  }
  __device__ void add(int64_t cell) const {
    if (fits()) {
      atomicAdd(shared + cell, 1);
    } else {
      atomicAdd(total + cell, Count{1});
    }
  }
  __device__ void end() const {
    __syncthreads();
    for (int i = threadIdx.x; fits() && i < cells; i += kThreads) {
      if (shared[i] > 0) {
        atomicAdd(total + i, static_cast<Count>(shared[i]));
      }
    }
  }
};

}  // namespace moe::kernels
