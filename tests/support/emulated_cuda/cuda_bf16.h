#pragma once
// Replaces the header of CUDA: bf16, rounded to nearest, ties to even.

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline __nv_bfloat16 __float2bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>(value == value ? rounded : 0x7FC0)};
}
