// NCCL, which is in LibTorch's CUDA half.

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

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
