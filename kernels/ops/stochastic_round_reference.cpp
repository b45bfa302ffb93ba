// The reference of stochastic_round.h: finds both neighbours and the share, in double, where every
// step is exact. Tests hold every other form to it.

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/ops/stochastic_round.h"
#include "kernels/ops/stochastic_round_bits.h"

namespace moe::kernels {

namespace {

float round_one(float in, uint32_t draw) {
  constexpr int kDigits = 8, kLeastExponent = -133;  // of bf16; its smallest number is 2^-133
  constexpr double kLargest = 0x1.fep127;
  if (!std::isfinite(in)) {
    return in;
  }
  const double magnitude = std::fabs(static_cast<double>(in));
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = 0.1xxx * 2^exponent
  const double spacing = std::ldexp(1.0, std::max(exponent - kDigits, kLeastExponent));
  const double below = std::floor(magnitude / spacing) * spacing;
  const double share = (magnitude - below) / spacing;  // a multiple of 2^-16
  const double out = share + draw / 65536.0 >= 1 ? below + spacing : below;
  return static_cast<float>(std::copysign(std::min(out, kLargest), in));
}

}  // namespace

void stochastic_round_reference(const float* in, uint16_t* out, int64_t count, uint64_t key,
                                int64_t first) {
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(first + i);
    const uint32_t draw =
        rounding_draw(key, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32));
    const float rounded = round_one(in[i], draw);
    const auto bits = std::bit_cast<uint32_t>(rounded);
    out[i] = std::isnan(rounded) ? static_cast<uint16_t>((bits >> 31 << 15) | 0x7fc0U)
                                 : static_cast<uint16_t>(bits >> 16);
  }
}

}  // namespace moe::kernels
