#pragma once
// The CUDA stream LibTorch currently uses on a tensor's device, as a plain pointer for the
// launchers. A build without CUDA (no_cuda.cpp) has none and says so.

#include <ATen/core/Tensor.h>

namespace moe::kernels {

void* current_stream(const at::Tensor& tensor);  // a cudaStream_t

// Whether this binary holds the CUDA kernels.
bool built_with_cuda();

}  // namespace moe::kernels
