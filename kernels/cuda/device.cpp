// What only LibTorch's CUDA half can say: its stream, its cards; compiled with MOE_CUDA only
// (cmake/cuda.cmake).

#include "kernels/ops/device.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace moe::kernels {

bool built_with_cuda() { return true; }

int64_t card_count() { return c10::cuda::device_count(); }

std::string card_name(int64_t card) { return at::cuda::getDeviceProperties(card)->name; }

uint64_t card_peak_bytes(int64_t card) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(card));
  return static_cast<uint64_t>(stats.allocated_bytes[0].peak);  // [0]: of all pools
}

void* current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace moe::kernels
