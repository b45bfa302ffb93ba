#include "kernels/cpu/bf16_convert.h"

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

MOE_VECTOR_CLONES void bf16_to_f32(const uint16_t* bf16, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen(bf16[i]);
  }
}

MOE_VECTOR_CLONES void f16_to_f32(const uint16_t* f16, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen_f16(f16[i]);
  }
}

MOE_VECTOR_CLONES void f32_to_bf16(const float* from, int64_t count, uint16_t* bf16) {
  for (int64_t i = 0; i < count; ++i) {
    narrow_to(from[i], bf16[i]);
  }
}

MOE_VECTOR_CLONES void pair_bf16(const uint16_t* first, const uint16_t* second, int64_t count,
                                 float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(uint32_t{first[i]} | uint32_t{second[i]} << 16);
  }
}

MOE_VECTOR_CLONES void pair_bf16(const float* first, const float* second, int64_t count,
                                 float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto low = std::bit_cast<uint32_t>(rounded_to_bf16(first[i]));
    const auto high = std::bit_cast<uint32_t>(rounded_to_bf16(second[i]));
    to[i] = std::bit_cast<float>(low >> 16 | high);
  }
}

MOE_VECTOR_CLONES void round_to_bf16(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = rounded_to_bf16(from[i]);
  }
}

}  // namespace moe::kernels
