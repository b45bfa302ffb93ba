#pragma once
// Memory that a thread works in and keeps: what is asked for differs from call to call, and given
// back each time it would have the allocator of tensors cut other blocks into pieces.

#include <c10/core/CPUAllocator.h>

#include <cstdint>

namespace moe::kernels {

class Scratch {
 public:
  // Room for `count` floats, at a cache line's beginning; what it held may be lost. Asked for more
  // than before, it grows.
  float* floats(int64_t count) {
    if (count > count_) {
      memory_.clear();
      memory_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(count) * sizeof(float));
      count_ = count;
    }
    return static_cast<float*>(memory_.get());
  }

 private:
  c10::DataPtr memory_;
  int64_t count_ = 0;
};

}  // namespace moe::kernels
