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
  // On the current stream, into `pool`.
  CudaGraph(const std::function<void()>& work, c10::Device device, c10::MempoolId_t pool)
      : device_(device) {
    Allocators allocators{device_.index()};
    capture(graph_, allocators, pool, work);
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

std::vector<std::unique_ptr<RecordedGraph>> record_graphs_cuda(
    const std::vector<std::function<void()>>& works, c10::Device device,
    const std::function<void()>& forget) {
  const c10::cuda::CUDAGuard on(device);
  c10::cuda::getCurrentCUDAStream().synchronize();
  // The default stream cannot be recorded.
  const c10::cuda::CUDAStreamGuard beside(c10::cuda::getStreamFromPool());
  for (int i = 0; i < kWarmUps; ++i) {
    for (const auto& work : works) {
      work();
    }
  }
  forget();
  c10::cuda::getCurrentCUDAStream().synchronize();
  // What they used would lie beside the pool, which takes as much.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  std::vector<std::unique_ptr<RecordedGraph>> graphs;
  for (const auto& work : works) {
    graphs.push_back(std::make_unique<CudaGraph>(work, device, pool));
  }
  return graphs;
}

}  // namespace moe::kernels
