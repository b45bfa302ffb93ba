#pragma once
// Replaces the header of CUDA where kernels/cuda/*.cu are compiled as plain C++ for machines
// without a GPU. Every CUDA thread is a fiber, the fibers of a block run in a shuffled order from
// barrier to barrier, blocks run one after the other. Found are wrong indices (under the address
// sanitizer every access past a buffer), missing barriers (the order differs between launches),
// barriers that not all threads reach, shared memory read before it is written (it is poisoned),
// misaligned accesses (for the vectors of launch.cuh: to 8 or 16 bytes), and races between warps
// and between blocks (races.cpp). Not emulated: speed, and the memory model between blocks.

#include <math.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "emulator.h"
#include "memory.h"
#include "races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one at a time, so that a static is memory of the block. The emulator poisons the
// section.
#define __shared__ static __attribute__((section("emulated_shared")))

enum cudaError_t { cudaSuccess = 0 };
using cudaStream_t = void*;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace emulated {

struct Place {
  dim3 thread, block, threads, blocks;
};
extern Place here;

// Runs `body` as every thread of the grid. Throws std::logic_error if threads deadlock or one was
// stopped.
void run(const cudaLaunchConfig_t& config, const std::function<void()>& body);

void wait_for_block();

// Synchronizes the lanes of `mask` and returns the value of lane `source`.
uint64_t exchange(unsigned mask, uint64_t value, unsigned source);
// Synchronizes the lanes of `mask` and returns the values of all 32; lanes outside `mask` have 0.
const uint64_t* meet(unsigned mask, uint64_t value);
unsigned lane();

template <typename Number>
Number from_lane(unsigned mask, Number value, unsigned source) {
  static_assert(sizeof(Number) <= 8 && std::is_trivially_copyable_v<Number>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulated

inline const dim3& threadIdx = ::emulated::here.thread;
inline const dim3& blockIdx = ::emulated::here.block;
inline const dim3& blockDim = ::emulated::here.threads;
inline const dim3& gridDim = ::emulated::here.blocks;

inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  if (bytes > 0) {
    const ::emulated::Awake awake;
    std::memset(memory, byte, bytes);
  }
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  ::emulated::run(*config, [&] { kernel(static_cast<Parameters>(arguments)...); });
  return cudaSuccess;
}

inline void __syncthreads() { ::emulated::wait_for_block(); }
inline void __syncwarp(unsigned mask = ~0U) { ::emulated::meet(mask, 0); }

template <typename Number>
Number __shfl_sync(unsigned mask, Number value, unsigned source) {
  return ::emulated::from_lane(mask, value, source % 32);
}
template <typename Number>
Number __shfl_xor_sync(unsigned mask, Number value, unsigned bits) {
  return ::emulated::from_lane(mask, value, ::emulated::lane() ^ bits);
}
template <typename Number>
Number __shfl_up_sync(unsigned mask, Number value, unsigned steps) {
  const unsigned lane = ::emulated::lane();
  return ::emulated::from_lane(mask, value, lane >= steps ? lane - steps : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  const uint64_t* votes = ::emulated::meet(mask, vote ? 1 : 0);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    bits |= static_cast<unsigned>(votes[lane] & mask >> lane & 1) << lane;
  }
  return bits;
}
inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  const uint64_t* values = ::emulated::meet(mask, value);
  unsigned peers = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    peers |= static_cast<unsigned>((mask >> lane & 1) != 0 && values[lane] == value) << lane;
  }
  return peers;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __float_as_uint(float value) {
  unsigned bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <typename Number, typename Change>
[[gnu::noinline, gnu::no_sanitize("thread")]] Number emulated_atomic(Number* memory,
                                                                     Change change) {
  if (::emulated::see_atomic != nullptr) {
    ::emulated::see_atomic(memory, sizeof *memory);
  }
  const Number before = *memory;
  *memory = change(before);
  return before;
}
template <typename Number>
Number atomicAdd(Number* memory, Number value) {
  return emulated_atomic(memory, [=](Number before) { return before + value; });
}
template <typename Number>
Number atomicMax(Number* memory, Number value) {
  return emulated_atomic(memory, [=](Number before) { return std::max(before, value); });
}
