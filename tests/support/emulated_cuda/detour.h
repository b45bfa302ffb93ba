#pragma once
// What the emulated device's operations of LibTorch say of themselves: that one was started or
// read from, and that what they copy to the host and back to do their work is no work of a GPU.

#include <c10/util/Exception.h>

#include <string>

#include "emulator.h"

namespace emulated {

// What a recorded graph may not hold: copies between host and GPU, and numbers read back. A Detour
// is none of its own.
class Recording {
 public:
  explicit Recording(bool is_on) : before_(on()) { on() = is_on; }
  ~Recording() { on() = before_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  static void refuse(const char* what) { TORCH_CHECK(!on(), what, " while a graph is recorded"); }

 private:
  static bool& on() {
    static thread_local bool one = false;
    return one;
  }
  bool before_;
};

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
  Recording not_recorded_{false};
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
