#pragma once
// What the emulated device's operations of LibTorch say of themselves: that one was started or
// read from, and that what they copy to the host and back to do their work is no work of a GPU.

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
