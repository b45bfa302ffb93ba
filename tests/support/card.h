#pragma once
// Where a test of kernels/cuda/*.cu runs them: on a card where one is, and in a build without CUDA
// on tests/support/emulated_cuda. A build with CUDA on a machine without a card skips.

#include <ATen/ATen.h>

#include "kernels/ops/device.h"
#include "tests/support/catch.h"

namespace moe::test {

inline bool is_emulated() { return !kernels::built_with_cuda(); }
inline bool has_card() { return is_emulated() || at::hasCUDA(); }

// The device of tensors that live on it.
inline const at::Device kCard(at::kCUDA, 0);

// A copy where the kernels can read and write it.
inline at::Tensor to_card(const at::Tensor& tensor) {
  return is_emulated() ? tensor.clone().contiguous() : tensor.contiguous().to(at::kCUDA);
}

// A buffer full of what nobody wrote: NaN, or -1 of integers.
inline at::Tensor poisoned(at::IntArrayRef shape, at::ScalarType type) {
  const at::Tensor host = at::isFloatingType(type)
                              ? at::full(shape, std::numeric_limits<double>::quiet_NaN(), type)
                              : at::full(shape, -1, type);
  return to_card(host);
}

inline void* stream_of(const at::Tensor& on_card) { return kernels::current_stream(on_card); }

}  // namespace moe::test

#define MOE_NEED_CARD()         \
  if (!moe::test::has_card()) { \
    MOE_SKIP("no GPU");         \
  }
