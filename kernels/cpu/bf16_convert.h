#pragma once
// Rows of numbers between f32 and bf16, as vector loops of the machine's instruction set. To
// nearest, ties to even; what is no number stays none.

#include <cstdint>

namespace moe::kernels {

void widen_all(const uint16_t* bf16, int64_t count, float* to);
void narrow_all(const float* from, int64_t count, uint16_t* bf16);
// To bf16, kept as f32; `to` may be `from`.
void round_all(const float* from, int64_t count, float* to);

}  // namespace moe::kernels
