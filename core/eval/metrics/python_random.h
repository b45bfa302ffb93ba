#pragma once
// Python's random.Random (CPython 3.8 to 3.13): the harness draws its few-shot examples and its
// bootstrap samples with it, so that equal seeds give equal prompts and equal standard errors.

#include <array>
#include <cstdint>
#include <vector>

namespace moe::eval {

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.Random(seed)

  double uniform();            // random(): 53 bits, in [0, 1)
  uint64_t below(uint64_t n);  // _randbelow(n), 1 <= n < 2^32
  // sample(range(n), k): k different indices in the order drawn. k <= n < 2^32.
  std::vector<uint64_t> sample(uint64_t n, uint64_t k);

 private:
  uint32_t next();  // 32 bits of MT19937

  std::array<uint32_t, 624> state_;
  size_t at_ = 624;
};

}  // namespace moe::eval
