// The reference of adamw.h: plain loops, double inside. Tests hold the kernel to it. Weights on a
// CPU are f32, and LibTorch's fused kernel serves those.

#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/adamw.h"

namespace moe::kernels {

void adamw_reference(const AdamWMemory& memory, const AdamWNumbers& numbers) {
  const auto t = static_cast<double>(numbers.t);
  const double mean_share = 1 - std::pow(numbers.beta1, t);
  const double square_share = 1 - std::pow(numbers.beta2, t);
  const double scale = memory.gradient_scale != nullptr ? *memory.gradient_scale : 1;
  for (int64_t i = 0; i < memory.count; ++i) {
    const double given = memory.gradient_is_bf16
                             ? widen(static_cast<const uint16_t*>(memory.gradient)[i])
                             : static_cast<const float*>(memory.gradient)[i];
    const double g = given * scale;
    const double m = numbers.beta1 * memory.mean[i] + (1 - numbers.beta1) * g;
    const double v = numbers.beta2 * memory.square[i] + (1 - numbers.beta2) * g * g;
    const double kept = memory.master[i] * (1 - numbers.lr * numbers.weight_decay);
    const double root = std::sqrt(v) / std::sqrt(square_share) + numbers.eps;
    memory.mean[i] = static_cast<float>(m);
    memory.square[i] = static_cast<float>(v);
    memory.master[i] = static_cast<float>(kept - numbers.lr / mean_share * m / root);
    if (memory.weight != nullptr) {
      narrow_to(memory.master[i], static_cast<uint16_t*>(memory.weight)[i]);
    }
  }
}

}  // namespace moe::kernels
