#pragma once
// Random numbers as a function of a seed and a stream name, equal on every machine. The random
// values of a tensor depend only on the seed and its name.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace moe {

// SplitMix64 (Steele, Lea, Flood 2014), for permutations and for the states of other generators.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}
  uint64_t next();
  uint64_t below(uint64_t bound);  // uniform in [0, bound), bound > 0, without modulo bias

 private:
  uint64_t state_;
};

// xoshiro256++ (Blackman and Vigna 2019); SplitMix64 fills the state from seed and name. Normal
// numbers use the ziggurat of Marsaglia and Tsang (2000) with 256 layers, in Doornik's form (2005,
// separate bits for layer and value): exact in distribution, about 4 ns a number.
class Random {
 public:
  explicit Random(uint64_t seed, std::string_view stream = "");

  uint64_t bits();                                                          // 64 uniform bits
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)
  uint64_t below(uint64_t count);                      // 0..count-1 without bias, count >= 1
  double normal();                                     // N(0, 1)
  void fill_normal(std::span<float> out, double std);  // N(0, std^2), each rounded once from double

 private:
  std::optional<double> try_tail_or_wedge(uint64_t layer, double u);
  std::array<uint64_t, 4> state_{};
};

}  // namespace moe
