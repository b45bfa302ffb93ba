#pragma once
// File descriptors: one that closes itself, and files that lie in memory alone.

#include <unistd.h>

#include <utility>

namespace moe {

// An open file descriptor, closed at the end. Moved, not copied.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = other.release();
    }
    return *this;
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }

 private:
  void reset() {
    if (number_ >= 0) {
      close(number_);
    }
  }

  int number_ = -1;
};

// An empty file that has no name on any disk, is this user's alone and goes with its last
// descriptor and mapping. Its size may be sealed. It never takes the number of a standard stream.
// Throws std::system_error where the system has no more of them.
Descriptor make_memory_file();

}  // namespace moe
