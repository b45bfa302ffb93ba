#pragma once
// A file descriptor that closes itself.

#include <unistd.h>

#include <utility>

namespace moe::distributed {

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

}  // namespace moe::distributed
