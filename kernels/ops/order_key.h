#pragma once
// Routing's order of numbers as an order of integers, one form for the CPU and for CUDA: larger
// first, equal ones (zero and minus zero too) tie, and NaN stands above all, where torch.sort
// has it. Bits go in, so that C++17 (the CUDA side) can read it.

#include <cstdint>

namespace moe::kernels {

// f32 bits -> an integer that is larger for a larger number.
constexpr uint32_t order_key(uint32_t bits) {
  constexpr uint32_t kSign = 0x80000000U, kInfinite = 0x7f800000U;
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinite) {
    return 0xffffffffU;
  }
  if (magnitude == 0) {
    return kSign;
  }
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// Larger for a larger number; of equal numbers for the lower index. Never 0.
constexpr uint64_t ranked_key(uint32_t bits, uint32_t index) {
  return uint64_t{order_key(bits)} << 32 | (0xffffffffU - index);
}
constexpr uint32_t index_of_key(uint64_t key) {
  return 0xffffffffU - static_cast<uint32_t>(key & 0xffffffffU);
}

}  // namespace moe::kernels
