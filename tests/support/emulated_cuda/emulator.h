#pragma once
// What a test may ask of the emulator beyond what it asks of a GPU: other orders of the threads, a
// launch's last blocks alone, and how much the host has asked for.

#include <cstdint>
#include <map>
#include <string>

namespace emulated {

// Blocks, and threads that can go on, run in an order that is drawn from this seed.
void set_order(unsigned seed);

// While one lives, only the last blocks of each launch run. A launch over more memory than there is
// can so be tested where its indices are greatest.
class LastBlocks {
 public:
  explicit LastBlocks(unsigned count);
  ~LastBlocks();
  LastBlocks(const LastBlocks&) = delete;
  LastBlocks& operator=(const LastBlocks&) = delete;
};

// Whether races.cpp watches launches of up to 131,072 threads. False where the kernels were
// compiled for the address or thread sanitizer: what it needs of the compiler cannot be had beside
// those.
bool finds_races();

// While one lives, races are not looked for.
class RacesAllowed {
 public:
  RacesAllowed();
  ~RacesAllowed();
  RacesAllowed(const RacesAllowed&) = delete;
  RacesAllowed& operator=(const RacesAllowed&) = delete;
};

// How often the host started something on the GPU, and how often it waited for what the GPU has, by
// the names of LibTorch's operations. Our own kernels are "kernel".
struct HostCalls {
  std::map<std::string, int64_t> launches, reads;

  static int64_t sum(const std::map<std::string, int64_t>& calls);
};
void count_launch(const std::string& name);
void count_read(const std::string& name);
// Since the last call, of all threads.
HostCalls take_host_calls();

// Sets whether the GPU multiplies all experts in one launch (true at first), as compute capability
// 9.x does, or lacks such a product.
void set_grouped_mm(bool has_it);
bool grouped_mm();

// Ends the launch that the calling thread of a kernel is part of: launching it throws
// std::logic_error that says which thread, why, and the seed of the order.
[[noreturn]] void stop(const std::string& why);

}  // namespace emulated
