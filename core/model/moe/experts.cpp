#include "core/model/moe/experts.h"

#include "core/base/error.h"
#include "core/model/moe/shadowed_experts.h"

namespace moe::model {

using at::Tensor;

Experts::Experts(kernels::Weight gate_up, kernels::Weight down, Adapter gate_up_adapter,
                 Adapter down_adapter, kernels::GroupedGemm gemm)
    : gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      gate_up_adapter_(std::move(gate_up_adapter)),
      down_adapter_(std::move(down_adapter)),
      gemm_(gemm) {}

Tensor Experts::run(const Tensor& rows, const std::vector<int64_t>& tokens_per_expert) const {
  return adapted_swiglu(rows, gate_up_, down_, gate_up_adapter_, down_adapter_, tokens_per_expert,
                        gemm_);
}

Tensor Experts::run_segments(const Tensor& rows, const Tensor& ends) const {
  MOE_CHECK(gate_up_.is_one_tensor() && down_.is_one_tensor());
  return adapted_swiglu(rows, gate_up_.tensor, down_.tensor, gate_up_adapter_, down_adapter_, ends,
                        gemm_);
}

bool Experts::can_be_shadowed() const {
  return !gate_up_adapter_.defined() && !down_adapter_.defined() && gate_up_.is_one_tensor() &&
         down_.is_one_tensor();
}

ShadowedExperts Experts::shadowed(distributed::Comm& group,
                                  const std::vector<int64_t>& shadowed) const {
  const Shadowing shadowing(group, shadowed, gate_up_.count());
  const ShadowedWeights gate_up = shadow_weights(gate_up_.tensor, shadowing);
  const ShadowedWeights down = shadow_weights(down_.tensor, shadowing);
  return {{gate_up.owned, down.owned}, {gate_up.replicas, down.replicas}};
}

}  // namespace moe::model
