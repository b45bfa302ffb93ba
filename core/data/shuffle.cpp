#include "core/data/shuffle.h"

#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace moe::data {

uint64_t SplitMix64::next() {
  state_ += 0x9E3779B97F4A7C15ULL;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
  return mixed ^ (mixed >> 31);
}

uint64_t SplitMix64::below(uint64_t bound) {
  MOE_CHECK(bound > 0);
  // The first 2^64 mod bound values would be drawn once too often: throw them away.
  const uint64_t surplus = (0 - bound) % bound;
  uint64_t value = next();
  while (value < surplus) {
    value = next();
  }
  return value % bound;
}

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Seed and epoch are mixed one after the other, so that (seed 1, epoch 2) and (seed 2, epoch 1)
  // are unrelated.
  SplitMix64 seeds(seed);
  SplitMix64 random(seeds.next() + static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

}  // namespace moe::data
