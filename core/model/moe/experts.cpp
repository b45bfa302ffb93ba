#include "core/model/moe/experts.h"

#include "core/base/error.h"

namespace moe::model {

using at::Tensor;

Experts::Experts(kernels::Weight gate_up, kernels::Weight down, Adapter gate_up_adapter,
                 Adapter down_adapter)
    : gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      gate_up_adapter_(std::move(gate_up_adapter)),
      down_adapter_(std::move(down_adapter)) {}

Tensor Experts::run(const Tensor& rows, const std::vector<int64_t>& tokens_per_expert) const {
  return adapted_swiglu(rows, gate_up_, down_, gate_up_adapter_, down_adapter_, tokens_per_expert);
}

Tensor Experts::run_segments(const Tensor& rows, const Tensor& ends) const {
  MOE_CHECK(gate_up_.is_one_tensor() && down_.is_one_tensor());
  return adapted_swiglu(rows, gate_up_.tensor, down_.tensor, gate_up_adapter_, down_adapter_, ends);
}

}  // namespace moe::model
