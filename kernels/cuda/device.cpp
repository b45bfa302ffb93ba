// What only LibTorch's CUDA half can say about devices and streams.

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

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
  return static_cast<uint64_t>(stats.allocated_bytes[0].peak);  // [0]: of all pools
}

void* current_stream_cuda(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

}  // namespace moe::kernels
