#pragma once
// What a program asks about GPUs. The first to ask opens the CUDA half, libmoe_cuda.so beside the
// binary. That comes before any question to ATen about CUDA, which it answers once and for all.

#include <cstdint>
#include <string>

namespace moe::kernels {

// GPUs that the driver shows; 0 without a driver, without CUDA in LibTorch, without the library.
int64_t gpu_count();
std::string why_no_gpu();              // which of them it is, as the end of a sentence
std::string gpu_name(int64_t gpu);     // "NVIDIA H200"
uint64_t gpu_peak_bytes(int64_t gpu);  // the most that this process's tensors there took so far

}  // namespace moe::kernels
