#pragma once
// Random numbers from a seed and a name, never from the surroundings: the same (seed, stream) gives
// the same numbers on every machine, whatever was drawn elsewhere. So a tensor's values depend on
// its own name and on nothing beside it.
//
// Bits: xoshiro256++ (Blackman and Vigna 2019), its state filled by splitmix64 from seed and name.
// Normals: the ziggurat of Marsaglia and Tsang (2000) with 256 layers, in Doornik's form (2005,
// bits of layer and value apart): exact in distribution, about 4 ns a number, which is what writing
// gigabytes of random weights needs.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace moe {

class Random {
 public:
  explicit Random(uint64_t seed, std::string_view stream = "");

  uint64_t bits();                                     // 64 uniform bits
  double uniform();                                    // [0, 1), 53 bits
  uint64_t below(uint64_t count);                      // 0..count-1 without bias, count >= 1
  double normal();                                     // N(0, 1)
  void fill_normal(std::span<float> out, double std);  // N(0, std^2), each rounded once from double

 private:
  double normal_outside(uint64_t layer, double u, bool& accepted);
  std::array<uint64_t, 4> state_{};
};

}  // namespace moe
