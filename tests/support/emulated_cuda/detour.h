#pragma once
// Counts reads of the host from the emulated device, except the copies that emulate an operation.

#include <string>

#include "emulator.h"

namespace emulated {

// Scope in which this thread computes on the host what a GPU computes: its copies are not counted.
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

inline void note_read(const std::string& name) {
  if (!Detour::is_on()) {
    count_read(name);
  }
}

}  // namespace emulated
