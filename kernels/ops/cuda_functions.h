#pragma once
// What libmoe_cuda.so provides besides the CUDA kernels that it registers (operations.h): devices,
// streams and NCCL, as a table of functions. The library is opened when a program first asks for a
// GPU (device.h).

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace moe::kernels {

// What kernels/cuda defines, or the emulator of the tests. LibTorch's device and streams:
int64_t gpu_count_cuda();
std::string gpu_name_cuda(int64_t gpu);
uint64_t gpu_peak_bytes_cuda(int64_t gpu);
bool gpu_has_grouped_mm_cuda(int64_t gpu);  // compute capability 9.x or 10.x
void* current_stream_cuda(c10::Device device);
// All ranks wait in it for the others to connect.
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

// The table. Nothing of ours makes a CUDA tensor where gpu_count() is 0 (flags refuse --device cuda
// by name), so a missing table is a defect of ours: std::logic_error.
const CudaFunctions& cuda_functions();

}  // namespace moe::kernels
