#include "core/model/moe_layer.h"

#include <ATen/record_function.h>

#include <numeric>

#include "core/base/error.h"
#include "core/route/rows.h"
#include "kernels/linear.h"
#include "kernels/token_rows.h"

namespace moe::model {

torch::Tensor router_logits(const torch::Tensor& x, const torch::Tensor& router) {
  return kernels::linear_in_f32(x, router);
}

torch::Tensor run_experts(const torch::Tensor& x,
                          const MoeWeights& weights,
                          const route::Routing& routing,
                          double gate_scale) {
  // Unused rows stand last: reading the loads back lets the products skip them.
  const std::vector<int64_t> loads = route::to_host(routing.plan.rows);
  const int64_t rows = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const torch::Tensor token = routing.plan.token.narrow(0, 0, rows);
  const torch::Tensor out = adapted_swiglu(kernels::gather_rows(x, token),
                                           weights.gate_up,
                                           weights.down,
                                           weights.gate_up_adapter,
                                           weights.down_adapter,
                                           loads);
  const torch::Tensor gate = routing.weights.narrow(0, 0, rows) * gate_scale;
  return kernels::combine_rows(out, gate, token, x.size(0));
}

MoeOutput moe_forward(const torch::Tensor& x,
                      const MoeWeights& weights,
                      const route::RouterSettings& router,
                      const route::RoutingGroup& group,
                      double gate_scale,
                      bool count_tokens,
                      std::optional<route::Routing>* decided) {
  MOE_CHECK(x.dim() == 2 && weights.router.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}",
            x.dim(),
            x.size(-1),
            weights.router.size(1));
  const bool again = decided != nullptr && decided->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const torch::Tensor logits = router_logits(x, weights.router);
    return again ? route::route_again(logits, **decided, router)
                 : route::route(logits, router, group);
  }();
  if (decided != nullptr && !again) {
    *decided = routing;
    (*decided)->combine = (*decided)->weights = torch::Tensor();
    (*decided)->losses = {};
  }
  return {run_experts(x, weights, routing, gate_scale),
          routing.losses,
          routing.counters,
          count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : torch::Tensor()};
}

}  // namespace moe::model
