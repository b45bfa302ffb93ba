#pragma once
// GPUs of this machine. The first call opens libmoe_cuda.so next to the binary. It must come before
// the first question to ATen about CUDA, because ATen caches the answer.

#include <cstdint>
#include <string>

namespace moe::kernels {

// Returns the number of GPUs that the driver reports; 0 without a driver, without CUDA in LibTorch
// or without libmoe_cuda.so.
int64_t gpu_count();
std::string why_no_gpu();              // reason for gpu_count() == 0, as the end of a sentence
std::string gpu_name(int64_t gpu);     // "NVIDIA H200"
uint64_t gpu_peak_bytes(int64_t gpu);  // peak of the memory of this process's tensors

}  // namespace moe::kernels
