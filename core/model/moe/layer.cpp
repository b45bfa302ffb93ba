#include "core/model/moe/layer.h"

#include <ATen/record_function.h>

#include "core/base/error.h"
#include "core/model/moe/token_dispatcher.h"
#include "kernels/ops/linear.h"

namespace moe::model {

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& router) {
  return kernels::linear_in_f32(x, router);
}

namespace {

// Scaled so that the sum over processes is the mean over all logical ranks, or over all sequences.
route::AuxLosses scaled_losses(const route::AuxLosses& losses, const TokenSpread& spread) {
  if (!spread.is_expert_parallel()) {
    return losses;
  }
  route::AuxLosses scaled;
  for (const auto loss : route::kAllLosses) {
    const bool is_of_sequences = loss == &route::AuxLosses::sequence_balance;
    if (const at::Tensor& unscaled = losses.*loss; unscaled.defined()) {
      scaled.*loss = unscaled * (is_of_sequences ? spread.sequence_scale : spread.loss_scale);
    }
  }
  return scaled;
}

}  // namespace

MoeOutput moe_forward(const at::Tensor& x, const at::Tensor& router_weight, const Experts& experts,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens, std::optional<route::Routing>* decided,
                      const at::Tensor& bias, const at::Tensor& residual) {
  MOE_CHECK(x.dim() == 2 && router_weight.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}", x.dim(), x.size(-1),
            router_weight.size(1));
  const bool is_recomputed = decided != nullptr && decided->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const at::Tensor logits = router_logits(x, router_weight);
    return is_recomputed ? route::route_again(logits, **decided, router)
                         : route::route(logits, router, spread.local, bias);
  }();
  if (decided != nullptr && !is_recomputed) {
    *decided = routing;
    (*decided)->combine = (*decided)->weights = at::Tensor();
    (*decided)->losses = {};
  }
  const auto dispatcher = make_token_dispatcher(spread, router);
  return {dispatcher->run(x, routing, experts, gate_scale, residual),
          scaled_losses(routing.losses, spread), routing.counters,
          count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : at::Tensor()};
}

MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens,
                      std::optional<route::Routing>* decided) {
  return moe_forward(x, weights.router, weights.experts(), router, spread, gate_scale, count_tokens,
                     decided);
}

}  // namespace moe::model
