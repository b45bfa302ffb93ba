#include "core/model/moe_layer.h"

#include <numeric>

#include "core/base/error.h"
#include "core/route/rows.h"
#include "kernels/grouped_swiglu.h"

namespace moe::model {
torch::Tensor router_logits(const torch::Tensor& x, const torch::Tensor& router) {
  const auto type = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return torch::matmul(x.to(type), router.to(type).t());
}

torch::Tensor run_experts(const torch::Tensor& x,
                          const MoeWeights& weights,
                          const route::Routing& routing,
                          double gate_scale) {
  // Unused rows stand last: reading the loads back lets the products skip them.
  const std::vector<int64_t> loads = route::to_host(routing.plan.rows);
  const int64_t rows = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const torch::Tensor token = routing.plan.token.narrow(0, 0, rows);
  const torch::Tensor out =
      kernels::grouped_swiglu(x.index_select(0, token), weights.gate_up, weights.down, loads);
  const torch::Tensor gate = routing.weights.narrow(0, 0, rows) * gate_scale;

  const torch::Tensor weighted = out.to(gate.scalar_type()) * gate.unsqueeze(1);
  return torch::zeros({x.size(0), x.size(1)}, weighted.options())
      .index_add(0, token, weighted)
      .to(x.scalar_type());
}

MoeOutput moe_forward(const torch::Tensor& x,
                      const MoeWeights& weights,
                      const route::RouterSettings& router,
                      const route::RoutingGroup& group,
                      double gate_scale,
                      bool count_tokens) {
  MOE_CHECK(x.dim() == 2 && weights.router.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}",
            x.dim(),
            x.size(-1),
            weights.router.size(1));
  const route::Routing routing = route::route(router_logits(x, weights.router), router, group);
  return {run_experts(x, weights, routing, gate_scale),
          routing.losses,
          routing.counters,
          count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : torch::Tensor()};
}

}  // namespace moe::model
