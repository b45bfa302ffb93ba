#pragma once
// Memory that a thread works in and keeps: what is asked for differs from call to call, and taken
// from the allocator of tensors it would cut other blocks into pieces.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace moe::kernels {

class Scratch {
 public:
  // Room for `count` floats, at a cache line's beginning; what it held may be lost. Asked for more
  // than before, it grows.
  float* floats(int64_t count) {
    if (count > count_) {
      constexpr size_t kLine = 64;
      memory_.reset();
      const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + kLine - 1) / kLine * kLine;
      memory_.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
      if (memory_ == nullptr) {
        throw std::bad_alloc();
      }
      count_ = count;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }  // NOLINT: it owns it
  };
  std::unique_ptr<float, Free> memory_;
  int64_t count_ = 0;
};

}  // namespace moe::kernels
