#include "kernels/ops/stochastic_round.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first) {
  static const Operation<decltype(stochastic_round_on<stochastic_round_cpu>)> operation(
      "moe::stochastic_round");
  operation(in, out, static_cast<int64_t>(key), first);
}

}  // namespace moe::kernels
