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

MoeOutput moe_forward(const at::Tensor& x, const LayerRouter& router, const Experts& experts,
                      const TokenSpread& spread, const MoeForwardOptions& options) {
  MOE_CHECK(x.dim() == 2 && router.weight.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}", x.dim(), x.size(-1),
            router.weight.size(1));
  std::optional<route::Routing>* decided = options.decided;
  const bool is_recomputed = decided != nullptr && decided->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const at::Tensor logits = router_logits(x, router.weight);
    return is_recomputed ? route::route_again(logits, **decided, router.settings)
                         : route::route(logits, router.settings, spread.local, router.bias);
  }();
  if (decided != nullptr && !is_recomputed) {
    *decided = routing;
    (*decided)->combine = (*decided)->weights = at::Tensor();
    (*decided)->losses = {};
  }
  const auto dispatcher = make_token_dispatcher(spread, router.settings);
  return {dispatcher->run(x, routing, experts, options.gate_scale, options.residual),
          scaled_losses(routing.losses, spread), routing.counters,
          options.count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : at::Tensor()};
}

MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      const MoeForwardOptions& options) {
  return moe_forward(x, {weights.router, router}, weights.experts(), spread, options);
}

}  // namespace moe::model
