#pragma once
// What the emulated device's operations of LibTorch say of themselves: that one was started or
// read from, and that what they copy to the host and back to do their work is no work of a GPU.

#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "emulator.h"

namespace emulated {

// While one lives, this thread does on the host what a GPU does in one launch: what is copied for
// that purpose is none of the GPU's work.
class Detour {
 public:
  Detour() { ++depth(); }
  ~Detour() { --depth(); }
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;

  static bool is_on() { return depth() > 0; }

 private:
  static int& depth() {
    static thread_local int one = 0;
    return one;
  }
};

// What a recorded graph may not hold: copies between host and GPU, and numbers read back, by any
// thread: backward runs in those of autograd. A Detour is none of its own.
class Recording {
 public:
  Recording() { ++count(); }
  ~Recording() { --count(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  static void refuse(const char* what) {
    TORCH_CHECK(count() == 0 || Detour::is_on(), what, " while a graph is recorded");
  }

 private:
  static std::atomic<int>& count() {
    static std::atomic<int> one = 0;
    return one;
  }
};

inline void note_launch(const std::string& name) {
  if (!Detour::is_on()) {
    count_launch(name);
  }
}

inline void note_read(const std::string& name) {
  if (!Detour::is_on()) {
    count_read(name);
  }
}

}  // namespace emulated
