#pragma once
// Stochastic rounding by the definition: finds both bf16 neighbours and the share between them in
// double, where every step is exact. Writes the bits of bf16.

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/ops/adamw.h"

namespace moe::test {

using kernels::rounding_draw;

inline float round_one(float in, uint32_t draw) {
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

inline void stochastic_round_reference(const kernels::StochasticRoundArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const auto index = static_cast<uint64_t>(args.first + i);
    const uint32_t draw =
        rounding_draw(args.key, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32));
    const float rounded = round_one(args.in[i], draw);
    const auto bits = std::bit_cast<uint32_t>(rounded);
    args.out[i] = std::isnan(rounded) ? static_cast<uint16_t>((bits >> 31 << 15) | 0x7fc0U)
                                      : static_cast<uint16_t>(bits >> 16);
  }
}

}  // namespace moe::test
