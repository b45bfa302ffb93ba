// The one file that asks LibTorch's CUDA half for its stream; compiled with MOE_CUDA only
// (cmake/cuda.cmake).

#include <c10/cuda/CUDAStream.h>

#include "kernels/stream.h"

namespace moe::kernels {

bool built_with_cuda() { return true; }

void* current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace moe::kernels
