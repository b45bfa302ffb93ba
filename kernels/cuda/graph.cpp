// Records CUDA graphs through LibTorch, whose allocator keeps their memory apart.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/capture.h"
#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

// LibTorch's libraries set themselves up in the first calls, with what no graph may hold.
constexpr int kWarmUps = 3;

// Of GPU memory and of pinned memory, for capture().
struct Allocators {
  void end_pool(c10::MempoolId_t pool) const {
    throws([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool); });
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
  }
  void release_pool(c10::MempoolId_t pool) const {
    throws([&] { at::getHostAllocator(at::kCUDA)->release_pool(pool); });
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  }
  c10::DeviceIndex device;
};

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
    Allocators allocators{device_.index()};
    capture(graph_, allocators, at::cuda::graph_pool_handle(), work);
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
