#pragma once
// Control of the emulator by tests: the order of threads, launches of the last blocks only, and
// counts of reads by the host.

#include <cstdint>
#include <map>
#include <string>

namespace emulated {

// Sets the seed of the order in which blocks and ready threads run.
void set_order(unsigned seed);

// Scope in which only the last blocks of each launch run, to test the largest indices of a launch
// over more memory than the machine has.
class LastBlocks {
 public:
  explicit LastBlocks(unsigned count);
  ~LastBlocks();
  LastBlocks(const LastBlocks&) = delete;
  LastBlocks& operator=(const LastBlocks&) = delete;
};

// Returns true if races.cpp watches launches of up to 131,072 threads: not if the kernels are
// compiled for the address or thread sanitizer, which need the same hooks of the compiler.
bool finds_races();

// Scope without the search for races.
class RacesAllowed {
 public:
  RacesAllowed();
  ~RacesAllowed();
  RacesAllowed(const RacesAllowed&) = delete;
  RacesAllowed& operator=(const RacesAllowed&) = delete;
};

// Number of times that the host waited for data of the GPU, by LibTorch's name of the operation.
struct HostCalls {
  std::map<std::string, int64_t> reads;

  static int64_t sum(const std::map<std::string, int64_t>& calls);
};
void count_read(const std::string& name);
// Returns the counts of all threads since the last call.
HostCalls take_host_calls();

// Sets whether the GPU has grouped matrix products, as compute capability 9.x does. Default: true.
void set_grouped_mm(bool has_it);
bool grouped_mm();

// Ends the launch of the calling kernel thread, which throws std::logic_error with the thread,
// `why` and the seed of the order.
[[noreturn]] void stop(const std::string& why);

}  // namespace emulated
