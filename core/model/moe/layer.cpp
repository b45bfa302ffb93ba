#include "core/model/moe/layer.h"

#include <ATen/record_function.h>

#include <numeric>

#include "core/base/error.h"
#include "core/model/moe/dispatch.h"
#include "core/model/moe/shadowed_experts.h"
#include "core/route/rows.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"

namespace moe::model {

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& router) {
  return kernels::linear_in_f32(x, router);
}

namespace {

RunExperts run_with(const at::Tensor& gate_up, const at::Tensor& down) {
  return [=](const at::Tensor& rows, const std::vector<int64_t>& tokens_per_expert) {
    return kernels::grouped_swiglu(rows, gate_up, down, tokens_per_expert);
  };
}

ShadowExperts shadow_with(const MoeWeights& weights, const ExpertParallel& parallel) {
  return [&weights, &parallel](const std::vector<int64_t>& experts) -> RunShadowed {
    const Shadowing shadowing(*parallel.group, experts, weights.gate_up.size(0));
    const ShadowedWeights gate_up = shadow_weights(weights.gate_up, shadowing);
    const ShadowedWeights down = shadow_weights(weights.down, shadowing);
    return {run_with(gate_up.owned, down.owned), run_with(gate_up.replicas, down.replicas)};
  };
}

// The experts on a GPU that owns all of them, where nothing is read back: all sizes follow from the
// plan's room (core/route/plan.h). What it costs is room for rows that may not come.
at::Tensor run_experts_on_gpu(const at::Tensor& x, const MoeWeights& weights,
                              const route::Routing& routing, double gate_scale) {
  const route::Plan& plan = routing.plan;
  const kernels::SegmentedRows segmented = kernels::segment_rows(
      plan.token, plan.expert, plan.choice, plan.rows, x.size(0), choices_of(routing));
  // Rows that the plan does not use weigh something at P, which is cut off.
  const int64_t rows = segmented.permutation.token.size(0);  // P
  const at::Tensor weight = at::zeros({rows + 1}, routing.weights.options())
                                .index_copy(0, segmented.row_of_plan, routing.weights * gate_scale)
                                .narrow(0, 0, rows);
  const at::Tensor out = kernels::grouped_swiglu(kernels::permute(x, segmented.permutation),
                                                 weights.gate_up, weights.down, segmented.ends);
  return kernels::unpermute(out, segmented.permutation, weight);
}

}  // namespace

at::Tensor run_experts(const at::Tensor& x, const MoeWeights& weights,
                       const route::Routing& routing, double gate_scale, const TokenSpread* spread,
                       const route::RouterSettings* router) {
  const bool is_expert_parallel = spread != nullptr && spread->is_expert_parallel();
  const bool has_adapters = weights.gate_up_adapter.defined() || weights.down_adapter.defined();
  // Without a capacity the plan has room for every expert of every token: too much to leave empty.
  const bool is_bounded = !routing.input.dropless;
  if (x.is_cuda() && is_bounded && !has_adapters && !is_expert_parallel) {
    return run_experts_on_gpu(x, weights, routing, gate_scale);
  }
  // Unused rows stand last: reading the counts back lets the products skip them.
  const std::vector<int64_t> tokens_per_expert = route::to_host(routing.plan.rows);
  const int64_t rows =
      std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
  const RunExperts run = [&weights](const at::Tensor& expert_rows,
                                    const std::vector<int64_t>& rows_of_expert) {
    return adapted_swiglu(expert_rows, weights.gate_up, weights.down, weights.gate_up_adapter,
                          weights.down_adapter, rows_of_expert);
  };
  const ShadowExperts shadow = has_adapters || !is_expert_parallel
                                   ? ShadowExperts()
                                   : shadow_with(weights, spread->parallel);
  const at::Tensor out =
      is_expert_parallel
          ? dispatch_expert_parallel(x, routing, *spread, *router, tokens_per_expert, run, shadow)
          : dispatch_local(x, routing, tokens_per_expert, run);
  return kernels::unpermute(out, plan_permutation(routing, rows),
                            routing.weights.narrow(0, 0, rows) * gate_scale);
}

namespace {

// Scaled so that the sum over processes is the mean over all logical ranks.
route::AuxLosses scaled_losses(const route::AuxLosses& losses, const TokenSpread& spread) {
  if (!spread.is_expert_parallel()) {
    return losses;
  }
  const auto scaled = [&](const at::Tensor& loss) {
    return loss.defined() ? loss * spread.loss_scale : loss;
  };
  return {scaled(losses.load_balance), scaled(losses.entropy), scaled(losses.l1)};
}

}  // namespace

MoeOutput moe_forward(const at::Tensor& x, const MoeWeights& weights,
                      const route::RouterSettings& router, const TokenSpread& spread,
                      double gate_scale, bool count_tokens,
                      std::optional<route::Routing>* decided) {
  MOE_CHECK(x.dim() == 2 && weights.router.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}", x.dim(), x.size(-1),
            weights.router.size(1));
  const bool is_recomputed = decided != nullptr && decided->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const at::Tensor logits = router_logits(x, weights.router);
    return is_recomputed ? route::route_again(logits, **decided, router)
                         : route::route(logits, router, spread.local);
  }();
  if (decided != nullptr && !is_recomputed) {
    *decided = routing;
    (*decided)->combine = (*decided)->weights = at::Tensor();
    (*decided)->losses = {};
  }
  return {run_experts(x, weights, routing, gate_scale, &spread, &router),
          scaled_losses(routing.losses, spread), routing.counters,
          count_tokens ? route::rows_of_tokens(routing.input, routing.plan) : at::Tensor()};
}

}  // namespace moe::model
