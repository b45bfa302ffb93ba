// Finds the table of CUDA functions, and answers what can be asked about devices without it.

#include "kernels/ops/cuda_functions.h"

#include <stdexcept>

// Defined in kernels/cuda/functions.cpp. A weak reference is null where the program was linked
// without that file.
extern "C" [[gnu::weak]] const moe::kernels::CudaFunctions* moe_cuda_functions();

namespace moe::kernels {

bool built_with_cuda() { return moe_cuda_functions != nullptr; }

const CudaFunctions& cuda_functions() {
  if (!built_with_cuda()) {
    throw std::logic_error("an operation on a CUDA tensor: this build has no CUDA");
  }
  return *moe_cuda_functions();
}

int64_t gpu_count() { return built_with_cuda() ? cuda_functions().gpu_count() : 0; }

std::string gpu_name(int64_t gpu) { return cuda_functions().gpu_name(gpu); }

uint64_t gpu_peak_bytes(int64_t gpu) { return cuda_functions().gpu_peak_bytes(gpu); }

void* current_stream(const at::Tensor& tensor) {
  return cuda_functions().current_stream(tensor.device());
}

std::unique_ptr<RecordedGraph> record_graph(const std::function<void()>& work, c10::Device device) {
  return cuda_functions().record_graph(work, device);
}

}  // namespace moe::kernels
