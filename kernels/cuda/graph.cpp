// Records CUDA graphs through LibTorch, whose allocator keeps their memory apart.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

// LibTorch's libraries set themselves up in the first calls, with what no graph may hold.
constexpr int kWarmUps = 3;

class CudaGraph final : public RecordedGraph {
 public:
  CudaGraph(const std::function<void()>& work, c10::Device device) : device_(device) {
    const c10::cuda::CUDAGuard on(device_);
    c10::cuda::getCurrentCUDAStream().synchronize();
    // The default stream cannot be recorded.
    const c10::cuda::CUDAStreamGuard beside(c10::cuda::getStreamFromPool());
    for (int i = 0; i < kWarmUps; ++i) {
      work();
    }
    c10::cuda::getCurrentCUDAStream().synchronize();
    graph_.capture_begin();
    try {
      work();
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      try {
        graph_.capture_end();
      } catch (const std::exception&) {  // it was broken off already
      }
      std::rethrow_exception(failure);
    }
    graph_.capture_end();
  }

  void replay() override {
    const c10::cuda::CUDAGuard on(device_);
    graph_.replay();
  }

 private:
  c10::Device device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<RecordedGraph> record_graph_cuda(const std::function<void()>& work,
                                                 c10::Device device) {
  return std::make_unique<CudaGraph>(work, device);
}

}  // namespace moe::kernels
