#pragma once
// Traits of devices, and the GPUs of this machine. The first call of a function declared below
// device_traits() opens libmoe_cuda.so. It must precede ATen's first check for CUDA, whose result
// ATen caches.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace moe::kernels {

// Memory, streams and arithmetic of a device. PyTorch's dispatcher, not these traits, chooses the
// implementation of an operation (operations.h).
struct DeviceTraits {
  // Tensors are in the memory of the process: they can alias mapped files, the host reads them in
  // place, and they count in memory checks.
  bool has_host_memory;
  bool has_streams;           // work and collectives are enqueued, and overlap with each other
  bool has_tensor_cores;      // products in bf16 and TF32 are faster than in f32
  bool is_row_invariant;      // the bits of a row of a product do not depend on the other rows
  int64_t elementwise_numel;  // elements per pass that fit the CPU caches or occupy a GPU
};
DeviceTraits device_traits(c10::Device device);

// Returns the number of GPUs that the driver reports; 0 without a driver, without CUDA in LibTorch
// or without libmoe_cuda.so.
int64_t gpu_count();
std::string why_no_gpu();              // reason for gpu_count() == 0, as the end of a sentence
std::string gpu_name(int64_t gpu);     // "NVIDIA H200"
uint64_t gpu_peak_bytes(int64_t gpu);  // peak of the memory of this process's tensors
// Returns gpu_peak_bytes() of a GPU, nullopt for a CPU.
std::optional<uint64_t> device_peak_bytes(c10::Device device);

}  // namespace moe::kernels
