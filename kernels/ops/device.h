#pragma once
// The CUDA stream LibTorch currently uses on a tensor's device, as a plain pointer for the
// launchers. A build without CUDA (no_cuda.cpp) has none and says so.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace moe::kernels {

void* current_stream(const at::Tensor& tensor);  // a cudaStream_t

// Whether this binary holds the CUDA kernels.
bool built_with_cuda();

// Cards that the driver shows; 0 without a driver, and in builds without CUDA.
int64_t card_count();
std::string card_name(int64_t card);     // "NVIDIA H200"
uint64_t card_peak_bytes(int64_t card);  // of this process's tensors there, at their most so far

}  // namespace moe::kernels
