#include "core/model/moe/shared_expert.h"

#include "kernels/ops/linear.h"

namespace moe::model {

at::Tensor SharedExpert::run(const at::Tensor& x) const {
  const at::Tensor share = at::sigmoid(kernels::linear_in_f32(x, gate));  // [T, 1]
  return share * adapted_swiglu(x, gate_up, down, gate_up_adapter, down_adapter, {x.size(0)});
}

}  // namespace moe::model
