#pragma once
// The device for tests of kernels/cuda/*.cu: a GPU, or tests/support/emulated_cuda in a build
// without CUDA. A build with CUDA on a machine without a GPU skips.

#include <ATen/ATen.h>

#include <vector>

#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/device.h"
#include "tests/support/catch.h"

namespace emulated {
[[gnu::weak]] void set_order(unsigned seed);  // null on a GPU
}

namespace moe::test {

inline constexpr const char* kEmulatedGpu = "emulated GPU";

inline bool has_gpu() { return kernels::gpu_count() > 0; }
inline bool is_emulated() { return has_gpu() && kernels::gpu_name(0) == kEmulatedGpu; }

inline const at::Device kGpu(at::kCUDA, 0);

// Returns a copy that kernels can access. The kernels of the emulator access memory of the host.
inline at::Tensor to_gpu(const at::Tensor& tensor) {
  return is_emulated() ? tensor.clone().contiguous() : tensor.contiguous().to(at::kCUDA);
}

// Returns a buffer full of NaN, or -1 of integers.
inline at::Tensor poisoned(at::IntArrayRef shape, at::ScalarType type) {
  const at::Tensor host = at::isFloatingType(type)
                              ? at::full(shape, std::numeric_limits<double>::quiet_NaN(), type)
                              : at::full(shape, -1, type);
  return to_gpu(host);
}

// Returns the results of `run` on the host. Runs twice, on the emulator in two orders of threads,
// and checks for equal bits, which a race between warps changes.
template <typename Run>
std::vector<at::Tensor> in_two_orders(Run run) {
  std::vector<at::Tensor> first;
  for (const unsigned seed : {1U, 2U}) {
    if (emulated::set_order != nullptr) {
      emulated::set_order(seed);
    }
    std::vector<at::Tensor> results = run();
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = results[i].cpu();
      INFO("result " << i << " of orders by the seeds 1 and " << seed);
      CHECK((seed == 1 || at::equal(results[i].view(at::kByte), first[i].view(at::kByte))));
    }
    first = seed == 1 ? results : first;
  }
  return first;
}

inline void* stream_of(const at::Tensor& on_gpu) {
  return kernels::current_stream_cuda(on_gpu.device());
}

}  // namespace moe::test

#define MOE_NEED_GPU()         \
  if (!moe::test::has_gpu()) { \
    MOE_SKIP("no GPU");        \
  }
