#include "core/model/moe/layer.h"

#include <ATen/record_function.h>

#include <numeric>

#include "core/base/error.h"
#include "core/model/moe/device_experts.h"
#include "core/model/moe/dispatch.h"
#include "core/model/moe/shadowed_experts.h"
#include "core/route/rows.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/token_rows.h"

namespace moe::model {

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& router) {
  return kernels::linear_in_f32(x, router);
}

namespace {

RunRows run_with(const at::Tensor& gate_up, const at::Tensor& down) {
  return [=](const at::Tensor& rows, const std::vector<int64_t>& loads) {
    return kernels::grouped_swiglu(rows, gate_up, down, loads);
  };
}

Lend lend_by(const MoeWeights& weights, const ExpertParallel& parallel) {
  return [&weights, &parallel](const std::vector<int64_t>& experts) -> RunLent {
    const Lending lending(*parallel.group, experts, weights.gate_up.size(0));
    const LentWeights gate_up = lend(weights.gate_up, lending);
    const LentWeights down = lend(weights.down, lending);
    return {run_with(gate_up.held, down.held), run_with(gate_up.borrowed, down.borrowed)};
  };
}

}  // namespace

at::Tensor run_experts(const at::Tensor& x, const MoeWeights& weights,
                       const route::Routing& routing, double gate_scale, const Sharing* sharing) {
  const bool is_shared = sharing != nullptr && sharing->spread.is_shared();
  const bool adapts = weights.gate_up_adapter.defined() || weights.down_adapter.defined();
  // Without a capacity the plan has room for every expert of every token: too much to leave empty.
  const bool is_bounded = !routing.input.dropless;
  if (x.is_cuda() && x.scalar_type() != at::kDouble && is_bounded && !adapts && !is_shared) {
    return run_experts_on_device(x, weights, routing, gate_scale);
  }
  // Unused rows stand last: reading the loads back lets the products skip them.
  const std::vector<int64_t> loads = route::to_host(routing.plan.rows);
  const int64_t rows = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const RunRows run = [&weights](const at::Tensor& of, const std::vector<int64_t>& expert_rows) {
    return adapted_swiglu(of, weights.gate_up, weights.down, weights.gate_up_adapter,
                          weights.down_adapter, expert_rows);
  };
  const Lend lend = adapts || !is_shared ? Lend() : lend_by(weights, sharing->spread.parallel);
  const at::Tensor out = is_shared ? dispatch_among(x, routing, *sharing, loads, run, lend)
                                   : dispatch_here(x, routing, loads, run);
  const at::Tensor token = routing.plan.token.narrow(0, 0, rows);
  const at::Tensor gate = routing.weights.narrow(0, 0, rows) * gate_scale;
  return kernels::combine_rows(out, gate, token, x.size(0));
}

namespace {

// The sum over processes is what the mean over all logical ranks is.
route::AuxLosses share_of(const route::AuxLosses& losses, const TokenSpread& spread) {
  if (!spread.is_shared()) {
    return losses;
  }
  const auto share = [&](const at::Tensor& loss) {
    return loss.defined() ? loss * spread.loss_share : loss;
  };
  return {share(losses.load_balance), share(losses.entropy), share(losses.l1)};
}

}  // namespace

MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens,
                      std::optional<route::Routing>* decided) {
  MOE_CHECK(x.dim() == 2 && weights.router.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}", x.dim(), x.size(-1),
            weights.router.size(1));
  const bool again = decided != nullptr && decided->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const at::Tensor logits = router_logits(x, weights.router);
    return again ? route::route_again(logits, **decided, router)
                 : route::route(logits, router, spread.here);
  }();
  if (decided != nullptr && !again) {
    *decided = routing;
    (*decided)->combine = (*decided)->weights = at::Tensor();
    (*decided)->losses = {};
  }
  const Sharing sharing{spread, router};
  return {run_experts(x, weights, routing, gate_scale, &sharing), share_of(routing.losses, spread),
          routing.counters,
          count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : at::Tensor()};
}

}  // namespace moe::model
