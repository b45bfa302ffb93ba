#pragma once
// The memory of the emulated GPU: addresses that the host must not touch. They open while a kernel
// runs and while something is copied, as a GPU's memory is only reached so; any other read or
// write is a segmentation fault, where it would be one on a machine with a GPU.

#include <cstddef>

namespace emulated {

// While one lives, kernels run: the GPU's memory can be read and written.
class Awake {
 public:
  Awake();
  ~Awake();
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
};

// Pages of their own, full of what nobody wrote (all bits set: NaN, or -1).
void* take_memory(size_t bytes);
void give_back_memory(void* memory);
// The most that was taken and not given back so far, in whole pages.
size_t peak_memory();

}  // namespace emulated
