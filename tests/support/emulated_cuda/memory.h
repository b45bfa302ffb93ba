#pragma once
// Memory of the emulated GPU. It is accessible only while a kernel or a copy runs; other accesses
// of the host are segmentation faults, as on a machine with a GPU.

#include <cstddef>

namespace emulated {

// Scope in which the memory of the GPU is accessible.
class Awake {
 public:
  Awake();
  ~Awake();
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
};

// Returns whole pages with all bits set (NaN, or -1).
void* take_memory(size_t bytes);
void give_back_memory(void* memory);
// Returns the peak of allocated memory, in whole pages.
size_t peak_memory();

}  // namespace emulated
