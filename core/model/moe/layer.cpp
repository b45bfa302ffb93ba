#include "core/model/moe/layer.h"

#include <ATen/record_function.h>

#include <utility>

#include "core/base/error.h"
#include "core/model/moe/token_dispatcher.h"

namespace moe::model {
namespace {

using at::Tensor;

// Returns the losses scaled so that their sums over processes are means over ranks or sequences.
route::AuxLosses scaled_losses(const route::AuxLosses& losses, const TokenPartition& partition) {
  if (!partition.is_expert_parallel()) {
    return losses;
  }
  route::AuxLosses scaled;
  for (const auto loss : route::kAllLosses) {
    const bool is_per_sequence = loss == &route::AuxLosses::sequence_balance;
    if (const Tensor& unscaled = losses.*loss; unscaled.defined()) {
      scaled.*loss = unscaled * (is_per_sequence ? partition.sequence_scale : partition.loss_scale);
    }
  }
  return scaled;
}

}  // namespace

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
  return adapted_swiglu(rows, gate_up_, down_, gate_up_adapter_, down_adapter_, ends);
}

MoeOutput moe_forward(const Tensor& x, const LayerRouter& router, const Experts& experts,
                      const TokenPartition& partition, const MoeForwardOptions& options) {
  MOE_CHECK(x.dim() == 2 && router.weight.size(1) == x.size(1),
            "x has {} dimensions, width {}, the router {}", x.dim(), x.size(-1),
            router.weight.size(1));
  std::optional<route::Routing>* saved = options.saved_routing;
  const bool is_recomputed = saved != nullptr && saved->has_value();
  const route::Routing routing = [&] {
    RECORD_USER_SCOPE("routing");
    const Tensor logits = kernels::linear_in_f32(x, router.weight);
    return is_recomputed ? route::recompute_gates(logits, **saved, router.settings)
                         : route::route(logits, router.settings, partition.local, router.bias);
  }();
  if (saved != nullptr && !is_recomputed) {
    *saved = routing;
    (*saved)->combine = (*saved)->weights = Tensor();
    (*saved)->losses = {};
  }
  return {
      run_experts(x, routing, experts, options.gate_scale, partition, router.settings,
                  options.residual),
      scaled_losses(routing.losses, partition), routing.counters,
      options.count_tokens ? route::count_rows_by_token(routing.input, routing.plan) : Tensor()};
}

Tensor SharedExpert::run(const Tensor& x) const {
  const Tensor share = at::sigmoid(kernels::linear_in_f32(x, gate));  // [T, 1]
  return share * adapted_swiglu(x, gate_up, down, gate_up_adapter, down_adapter, {x.size(0)});
}

}  // namespace moe::model
