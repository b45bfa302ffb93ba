#pragma once
// What a program asks about GPUs, and the stream that kernels are launched on. A build without CUDA
// has no GPUs and says so.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace moe::kernels {

// The cudaStream_t that LibTorch currently uses on the tensor's device.
void* current_stream(const at::Tensor& tensor);

// Whether this binary holds the CUDA kernels.
bool built_with_cuda();

// GPUs that the driver shows; 0 without a driver, and in builds without CUDA.
int64_t gpu_count();
std::string gpu_name(int64_t gpu);     // "NVIDIA H200"
uint64_t gpu_peak_bytes(int64_t gpu);  // the most that this process's tensors there took so far

}  // namespace moe::kernels
