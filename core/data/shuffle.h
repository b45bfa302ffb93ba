#pragma once
// The order of examples in an epoch: a Fisher-Yates shuffle driven by SplitMix64. Both are ours,
// because the standard library's distributions differ from one library to the next and an order
// must be the same everywhere.

#include <cstdint>
#include <vector>

namespace moe::data {

// SplitMix64 (Steele, Lea, Flood 2014): the state counts up, a mix of it comes out.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}
  uint64_t next();
  uint64_t below(uint64_t bound);  // uniform in [0, bound), bound > 0, without modulo bias

 private:
  uint64_t state_;
};

// A permutation of 0..count-1 that depends on (seed, epoch) alone.
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace moe::data
