#include "core/model/moe/device_experts.h"

#include "core/base/error.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/row_ops.h"

namespace moe::model {

at::Tensor run_experts_on_device(const at::Tensor& x, const MoeWeights& weights,
                                 const route::Routing& routing, double gate_scale) {
  MOE_CHECK(!weights.gate_up_adapter.defined() && !weights.down_adapter.defined());
  const route::Plan& plan = routing.plan;
  const int64_t tokens = x.size(0), columns = routing.input.k + 2;  // + fill-in, + IR
  const kernels::RowLayout layout = kernels::lay_out_rows(plan.token, plan.expert, plan.choice,
                                                          plan.count, plan.rows, tokens, columns);
  // Unused rows name the first cell and weigh 0. A matrix of cells, though few are taken: T * C.
  const at::Tensor cell = plan.token * columns + plan.choice;
  const at::Tensor gate = at::zeros({tokens * columns}, routing.weights.options())
                              .scatter_add(0, cell, routing.weights * gate_scale)
                              .view({tokens, columns});
  const at::Tensor out = kernels::grouped_swiglu(kernels::gather_rows(x, layout), weights.gate_up,
                                                 weights.down, layout.ends);
  return kernels::combine_rows(out, gate, layout);
}

}  // namespace moe::model
