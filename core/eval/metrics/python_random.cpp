// MT19937 (Matsumoto and Nishimura, 1998) with the seeding by an array that CPython uses, which
// std::mt19937 does not offer.
#include "core/eval/metrics/python_random.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.h"

namespace moe::eval {

PythonRandom::PythonRandom(uint32_t seed) : state_() {
  state_[0] = 19650218U;
  for (uint32_t i = 1; i < 624; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30U)) + i;
  }
  uint32_t at = 1;
  const auto advance = [&] {
    if (++at == 624) {
      state_[0] = state_[623];
      at = 1;
    }
  };
  for (int i = 0; i < 624; ++i) {  // a key of one word
    state_[at] = (state_[at] ^ ((state_[at - 1] ^ (state_[at - 1] >> 30U)) * 1664525U)) + seed;
    advance();
  }
  for (int i = 0; i < 623; ++i) {
    state_[at] = (state_[at] ^ ((state_[at - 1] ^ (state_[at - 1] >> 30U)) * 1566083941U)) - at;
    advance();
  }
  state_[0] = 0x80000000U;
}

uint32_t PythonRandom::next() {
  if (at_ == 624) {
    for (size_t i = 0; i < 624; ++i) {
      const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % 624] & 0x7FFFFFFFU);
      state_[i] = state_[(i + 397) % 624] ^ (y >> 1U) ^ ((y & 1U) != 0 ? 0x9908B0DFU : 0U);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11U;
  y ^= (y << 7U) & 0x9D2C5680U;
  y ^= (y << 15U) & 0xEFC60000U;
  return y ^ (y >> 18U);
}

double PythonRandom::uniform() {
  const uint32_t high = next() >> 5U;
  const uint32_t low = next() >> 6U;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t PythonRandom::below(uint64_t n) {
  MOE_CHECK(n > 0 && n < (uint64_t{1} << 32U), "{}", n);
  const auto bits = static_cast<uint32_t>(64 - __builtin_clzll(n));
  uint64_t value = n;
  while (value >= n) {
    value = next() >> (32U - bits);
  }
  return value;
}

std::vector<uint64_t> PythonRandom::sample(uint64_t n, uint64_t k) {
  MOE_CHECK(k <= n, "{} of {}", k, n);
  double set_size = 21;  // CPython: from which n on a set of what was drawn is smaller than a list
  if (k > 5) {
    set_size += std::pow(4, std::ceil(std::log(static_cast<double>(k * 3)) / std::log(4.0)));
  }
  std::vector<uint64_t> drawn;
  if (static_cast<double>(n) <= set_size) {
    std::vector<uint64_t> pool(n);
    std::iota(pool.begin(), pool.end(), uint64_t{0});
    for (uint64_t i = 0; i < k; ++i) {
      const uint64_t j = below(n - i);
      drawn.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return drawn;
  }
  std::set<uint64_t> taken;
  while (drawn.size() < k) {
    const uint64_t j = below(n);
    if (taken.insert(j).second) {
      drawn.push_back(j);
    }
  }
  return drawn;
}

}  // namespace moe::eval
