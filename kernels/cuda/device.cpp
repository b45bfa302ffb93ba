// Functions for devices, streams and NCCL, by LibTorch's CUDA libraries (ops/cuda_functions.h).

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

int64_t gpu_count_cuda() { return c10::cuda::device_count(); }

std::string gpu_name_cuda(int64_t gpu) { return at::cuda::getDeviceProperties(gpu)->name; }

bool gpu_has_grouped_mm_cuda(int64_t gpu) {
  const int major = at::cuda::getDeviceProperties(gpu)->major;
  return major == 9 || major == 10;
}

uint64_t gpu_peak_bytes_cuda(int64_t gpu) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(gpu));
  return static_cast<uint64_t>(stats.allocated_bytes[0].peak);  // [0]: all pools
}

void* current_stream_cuda(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

using c10d::ProcessGroupNCCL;

c10::intrusive_ptr<c10d::Backend> make_nccl_cuda(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size,
                                                 std::chrono::milliseconds timeout,
                                                 c10::Device device) {
  const auto options = ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  const auto backend = c10::make_intrusive<ProcessGroupNCCL>(store, rank, size, options);
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace moe::kernels

// The binary that opens the library compares it with its own version.
extern "C" const char* moe_cuda_version() { return MOE_VERSION; }
