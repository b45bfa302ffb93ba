#pragma once
// AdamW as plain loops in double. The tests hold the CUDA kernel to it.

#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/adamw.h"

namespace moe::test {

using kernels::AdamWArgs;
using kernels::AdamWSettings;

inline void adamw_reference(const AdamWArgs& args, const AdamWSettings& settings) {
  const auto t = static_cast<double>(settings.t);
  const double mean_share = 1 - std::pow(settings.beta1, t);
  const double square_share = 1 - std::pow(settings.beta2, t);
  const double scale = args.gradient_scale != nullptr ? *args.gradient_scale : 1;
  for (int64_t i = 0; i < args.count; ++i) {
    const double given = args.gradient_is_bf16
                             ? kernels::widen(static_cast<const uint16_t*>(args.gradient)[i])
                             : static_cast<const float*>(args.gradient)[i];
    const double g = given * scale;
    const double m = settings.beta1 * args.mean[i] + (1 - settings.beta1) * g;
    const double v = settings.beta2 * args.square[i] + (1 - settings.beta2) * g * g;
    const double kept = args.master[i] * (1 - settings.lr * settings.weight_decay);
    const double root = std::sqrt(v) / std::sqrt(square_share) + settings.eps;
    args.mean[i] = static_cast<float>(m);
    args.square[i] = static_cast<float>(v);
    args.master[i] = static_cast<float>(kept - settings.lr / mean_share * m / root);
    if (args.weight != nullptr) {
      kernels::narrow_to(args.master[i], static_cast<uint16_t*>(args.weight)[i]);
    }
  }
}

}  // namespace moe::test
