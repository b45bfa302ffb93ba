#pragma once
// Table of functions of libmoe_cuda.so for devices, streams and NCCL. The first call of a function
// of device.h opens the library, which also registers the kernels (operations.h).

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace moe::kernels {

// Defined by kernels/cuda, or by the emulator of the tests.
int64_t gpu_count_cuda();
std::string gpu_name_cuda(int64_t gpu);
uint64_t gpu_peak_bytes_cuda(int64_t gpu);
bool gpu_has_grouped_mm_cuda(int64_t gpu);  // compute capability 9.x or 10.x
void* current_stream_cuda(c10::Device device);
// Blocks until all ranks have connected.
c10::intrusive_ptr<c10d::Backend> make_nccl_cuda(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size,
                                                 std::chrono::milliseconds timeout,
                                                 c10::Device device);

struct CudaFunctions {
  decltype(&gpu_count_cuda) gpu_count;
  decltype(&gpu_name_cuda) gpu_name;
  decltype(&gpu_peak_bytes_cuda) gpu_peak_bytes;
  decltype(&gpu_has_grouped_mm_cuda) gpu_has_grouped_mm;
  decltype(&make_nccl_cuda) make_nccl;
};

// Returns the table. Throws std::logic_error if the library cannot be used; callers have checked
// gpu_count().
const CudaFunctions& cuda_functions();

// Asynchronous copy of a tensor to page-locked host memory.
class HostCopy {
 public:
  // Enqueues the copy on the current stream. A CPU tensor is not copied.
  explicit HostCopy(const at::Tensor& tensor);

  // Returns the host tensor. The first call blocks until the copy is complete, but does not wait
  // for work that was enqueued later.
  const at::Tensor& get();

 private:
  at::Tensor host_;
  std::optional<c10::Event> arrived_;  // empty after get()
};

}  // namespace moe::kernels
