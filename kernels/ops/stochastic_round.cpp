#include "kernels/ops/stochastic_round.h"

#include <c10/util/Exception.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first) {
  TORCH_CHECK(in.sizes() == out.sizes() && in.is_contiguous() && out.is_contiguous() &&
                  in.scalar_type() == at::kFloat && out.scalar_type() == at::kBFloat16,
              "in is ", in.toString(), in.sizes(), ", out is ", out.toString(), out.sizes());
  const StochasticRoundArgs args{in.const_data_ptr<float>(),
                                 static_cast<uint16_t*>(out.mutable_data_ptr()), in.numel(), key,
                                 first};
  if (in.is_cuda()) {
    cuda_functions().stochastic_round(args, current_stream(in));
  } else {
    stochastic_round_cpu(args);
  }
}

}  // namespace moe::kernels
