#pragma once
// Arrays converted between f32 and 16 bits, as vector loops of the machine's instruction set. To
// nearest, ties to even; NaN stays NaN.

#include <cstdint>

namespace moe::kernels {

void bf16_to_f32(const uint16_t* bf16, int64_t count, float* to);
void f16_to_f32(const uint16_t* f16, int64_t count, float* to);  // IEEE half precision
void f32_to_bf16(const float* from, int64_t count, uint16_t* bf16);
// to[i] = first[i] in the lower half of a word, second[i] in the upper, as bf16.
void pair_bf16(const uint16_t* first, const uint16_t* second, int64_t count, float* to);
void pair_bf16(const float* first, const float* second, int64_t count, float* to);
// To bf16, kept as f32; `to` may be `from`.
void round_to_bf16(const float* from, int64_t count, float* to);

}  // namespace moe::kernels
