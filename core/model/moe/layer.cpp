#include "core/model/moe/layer.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/permutation.h"
#include "kernels/ops/swiglu.h"

namespace moe::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns true if the number of routed rows has a tight bound known on the host: with a capacity,
// and for dropless top-k. For other dropless routers the only bound is T E.
bool has_static_row_bound(const route::Routing& routing) {
  return !routing.input.is_dropless || routing.counters.has_token_requests;
}

kernels::Permutation plan_permutation(const route::Routing& routing, int64_t rows) {
  return kernels::make_permutation(routing.plan.token.narrow(0, 0, rows),
                                   routing.plan.choice.narrow(0, 0, rows), routing.input.tokens(),
                                   max_choices(routing));
}

// Returns [rows] with the scaled gate weight of row r of the plan at row_of_plan[r], zeros
// elsewhere. Unused rows of the plan have row_of_plan[r] = rows, which is cut off.
Tensor scattered_weights(const route::Routing& routing, const Tensor& row_of_plan,
                         double gate_scale, int64_t rows) {
  return at::zeros({rows + 1}, routing.weights.options())
      .index_copy(0, row_of_plan, routing.weights * gate_scale)
      .narrow(0, 0, rows);
}

// Returns true if the tokens per expert stay on a GPU. LibTorch's grouped products in f32
// synchronize with the host anyway, so dropless routers count on the host in f32: experts without
// rows are then skipped.
bool can_stay_on_device(const Tensor& x, const route::Routing& routing) {
  return kernels::has_grouped_mm(x) && has_static_row_bound(routing) &&
         routing.input.experts() <= kernels::kMaxSegmentExperts &&
         (!routing.input.is_dropless || x.scalar_type() == at::kBFloat16);
}

// State of an all-to-all, which its autograd nodes share.
struct AllToAllState : torch::CustomClassHolder {
  AllToAllState(distributed::Comm& comm, std::vector<int64_t> to_others,
                std::vector<int64_t> from_others)
      : group(comm),
        layer(comm.trace.layer),
        send_counts(std::move(to_others)),
        receive_counts(std::move(from_others)) {}

  // Starts to send counts_out[q] of `rows` to process q. finish() completes the returned buffer.
  Tensor start(const Tensor& rows, const std::vector<int64_t>& counts_out,
               const std::vector<int64_t>& counts_in) {
    const int64_t incoming = std::accumulate(counts_in.begin(), counts_in.end(), int64_t{0});
    send_buffer = rows.contiguous();
    receive_buffer = at::empty({incoming, rows.size(1)}, rows.options());
    const int64_t layer_before = std::exchange(group.trace.layer, layer);
    transfer = group.all_to_all(send_buffer, counts_out, receive_buffer, counts_in);
    group.trace.layer = layer_before;
    return receive_buffer;
  }

  Tensor finish() {
    MOE_CHECK(transfer.has_value(), "no all-to-all was started");
    transfer->wait();
    transfer.reset();
    send_buffer = Tensor();
    return std::move(receive_buffer);
  }

  distributed::Comm& group;
  int64_t layer;  // of the forward, for error messages in backward
  std::vector<int64_t> send_counts, receive_counts;
  std::optional<distributed::Transfer> transfer;
  Tensor send_buffer, receive_buffer;  // alive until the transfer is complete
};

using State = c10::intrusive_ptr<AllToAllState>;

State saved_state(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<AllToAllState>(
      context->saved_data["state"].toCapsule());
}

struct Start : torch::autograd::Function<Start> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const State& state) {
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    return state->start(rows, state->send_counts, state->receive_counts);
  }
  // Waits for the gradient of `rows`, whose transfer Finish::backward has started.
  static variable_list backward(AutogradContext* context, variable_list /*placeholders*/) {
    return {saved_state(context)->finish(), Tensor()};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static Tensor forward(AutogradContext* context, const Tensor& receive_buffer,
                        const State& state) {
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    state->finish();
    return receive_buffer.detach();
  }
  // Returns a placeholder, which Start::backward ignores: the gradient is still in transit.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const State state = saved_state(context);
    state->start(gradients[0], state->receive_counts, state->send_counts);
    return {gradients[0], Tensor()};
  }
};

// Sends rows [sum of send_counts, D] to other processes and returns those received, [sum of
// receive_counts, D]. Backward is the reverse all-to-all.
//
// Computations between Start and Finish overlap with the transfer, also in backward, where Finish
// starts it and Start waits. The result of Start is not filled yet and may only be passed to
// Finish. All processes of the group must call both in the same order, also without rows. The
// existence of a gradient must depend on the trained weights only, never on the number of rows.
Tensor exchange(const Tensor& rows, const State& state) {
  return Finish::apply(Start::apply(rows, state), state);
}

// Returns [n, D]: row permutation[r] is the token of row r of the plan. permutation [n] i64.
Tensor rows_permuted(const Tensor& x, const route::Routing& routing, const Tensor& permutation) {
  const auto permuted = [&](const Tensor& values) {
    const Tensor used = values.narrow(0, 0, permutation.size(0));
    return at::empty_like(used).index_copy_(0, permutation, used);
  };
  return kernels::permute(
      x, kernels::make_permutation(permuted(routing.plan.token), permuted(routing.plan.choice),
                                   x.size(0), max_choices(routing)));
}

struct Dispatch {
  DispatchLayout layout;
  Tensor rows;  // [remote rows | local rows, D]; the remote rows are the send buffer
};

// Dispatches the plan of a router with a capacity by the tokens per expert on the host.
Dispatch dispatch_slots(const Tensor& x, const route::Routing& routing,
                        const TokenPartition& partition, const route::RouterSettings& router) {
  const std::vector<int64_t> tokens_per_expert = route::to_host(routing.plan.rows);
  Dispatch dispatch{make_dispatch_layout(routing, partition, router, tokens_per_expert), {}};
  const DispatchLayout& layout = dispatch.layout;
  const Tensor in_plan_order =
      kernels::permute(x, plan_permutation(routing, layout.permutation.size(0)));
  dispatch.rows = kernels::unpermute(
      in_plan_order,
      kernels::make_permutation(layout.permutation, layout.remote_rows + layout.local_rows));
  return dispatch;
}

// Dispatches the plan of a dropless router. The host waits for the counts of all processes. If the
// number of rows is known before, the host enqueues the permutation of x first.
Dispatch dispatch_dropless(const Tensor& x, const route::Routing& routing,
                           const ExpertParallel& parallel) {
  Dispatch dispatch;
  dispatch.layout = make_dropless_layout(routing, parallel, [&](const Tensor& permutation) {
    dispatch.rows = rows_permuted(x, routing, permutation);
  });
  return dispatch;
}

// Returns the outputs of the experts in the order of `rows`: the received rows, if `with_received`,
// then the local rows, if `with_local`.
Tensor run_in_order(const DispatchLayout& layout, Tensor rows, int64_t ep_rank, bool with_received,
                    bool with_local, const Experts& experts) {
  const ExpertOrder order = layout.local_counts.defined() && with_local
                                ? order_in_segments(layout, ep_rank, with_received)
                                : order_by_expert(layout, rows, ep_rank, with_local);
  const Tensor in_order = kernels::permute(rows, order.permutation);
  rows.reset();
  return kernels::unpermute(experts.run(in_order, order.segments), order.permutation);
}

// Returns the permutation of the plan's rows into a fixed layout of `rows` rows, whose other rows
// are zeros. Unused rows of the plan have permutation[r] = rows, which is cut off.
kernels::Permutation fixed_permutation(const route::Routing& routing, const Tensor& permutation,
                                       int64_t rows) {
  const int64_t tokens = routing.input.tokens(), choices = max_choices(routing);
  const auto scattered = [](const Tensor& values, const Tensor& index, int64_t size) {
    return at::full({size + 1}, -1, values.options())
        .index_copy_(0, index, values)
        .narrow(0, 0, size);
  };
  const Tensor choice = (routing.plan.token * choices + routing.plan.choice)
                            .masked_fill(permutation == rows, tokens * choices);
  return {scattered(routing.plan.token, permutation, rows),
          scattered(permutation.to(at::kInt), choice, tokens * choices).view({tokens, choices}),
          {},
          tokens,
          choices};
}

// Returns the outputs of the experts for all_rows [remote rows | local rows], in the same order.
// Runs the experts on all rows at once, or on local rows during the all-to-all.
Tensor exchange_and_run(const DispatchLayout& layout, const Tensor& all_rows,
                        const Experts& experts, const ExpertParallel& parallel) {
  const auto rows = all_rows.split_with_sizes({layout.remote_rows, layout.local_rows});
  const State dispatch = c10::make_intrusive<AllToAllState>(*parallel.group, layout.send_counts,
                                                            layout.receive_counts);
  const State combine = c10::make_intrusive<AllToAllState>(*parallel.group, layout.receive_counts,
                                                           layout.send_counts);
  const int64_t rank = parallel.ep_rank();
  if (!parallel.overlap_all_to_all) {
    Tensor in = at::cat({exchange(rows[0], dispatch), rows[1]});
    const int64_t received = in.size(0) - layout.local_rows;
    const auto parts = run_in_order(layout, std::move(in), rank, /*with_received=*/true,
                                    /*with_local=*/true, experts)
                           .split_with_sizes({received, layout.local_rows});
    return at::cat({exchange(parts[0], combine), parts[1]});
  }
  Tensor receive_buffer = Start::apply(rows[0], dispatch);
  const Tensor local = layout.local_counts.defined()
                           ? run_in_order(layout, rows[1], rank, /*with_received=*/false,
                                          /*with_local=*/true, experts)
                           : experts.run(rows[1], layout.local_tokens_per_expert);
  Tensor received = Finish::apply(std::exchange(receive_buffer, Tensor()), dispatch);
  const Tensor out = run_in_order(layout, std::move(received), rank, /*with_received=*/true,
                                  /*with_local=*/false, experts);
  return at::cat({exchange(out, combine), local});
}

// Returns grouped_linear(rows, weight), plus the product with the adapter.
Tensor with_adapter(const Tensor& rows, const Tensor& weight, const Adapter& adapter,
                    const kernels::Segments& segments) {
  const Tensor product = kernels::grouped_linear(rows, weight, segments);
  if (!adapter.defined()) {
    return product;
  }
  const Tensor low_rank = kernels::grouped_linear(rows, adapter.a, segments);  // [R, r]
  return product + kernels::grouped_linear(low_rank, adapter.b, segments) * adapter.scale;
}

// Returns the losses scaled so that their sums over processes are means over ranks or sequences.
// Sums over tokens remain as they are.
route::AuxLosses scaled_losses(const route::AuxLosses& losses, const TokenPartition& partition) {
  if (!partition.is_expert_parallel()) {
    return losses;
  }
  route::AuxLosses scaled;
  scaled.balance = losses.balance;
  const double rank_scale = partition.local.sum_losses ? 1 : partition.loss_scale;
  for (const auto loss : route::kAllLosses) {
    const bool is_per_sequence = loss == &route::AuxLosses::sequence_balance;
    if (const Tensor& unscaled = losses.*loss; unscaled.defined()) {
      scaled.*loss = unscaled * (is_per_sequence ? partition.sequence_scale : rank_scale);
    }
  }
  return scaled;
}

}  // namespace

int64_t max_choices(const route::Routing& routing) {
  const int64_t with_rectification = routing.input.k + 2;
  return has_static_row_bound(routing) ? with_rectification
                                       : std::max(routing.input.experts(), with_rectification);
}

Tensor run_local_experts(const Tensor& x, const route::Routing& routing, const Experts& experts,
                         double gate_scale, const Tensor& residual) {
  kernels::Permutation permutation;
  kernels::Segments segments{};
  Tensor weight;
  if (can_stay_on_device(x, routing)) {  // unused rows are part of the products
    const route::Plan& plan = routing.plan;
    const kernels::SegmentedRows segmented = kernels::segment_rows(
        plan.token, plan.expert, plan.choice, plan.rows, x.size(0), max_choices(routing));
    permutation = segmented.permutation;
    segments.ends = segmented.ends;
    weight =
        scattered_weights(routing, segmented.row_of_plan, gate_scale, permutation.token.size(0));
  } else {  // unused rows are last and are not computed
    segments.rows_per_expert = route::to_host(routing.plan.rows);
    permutation = plan_permutation(routing, segments.used_rows());
    weight = routing.weights.narrow(0, 0, segments.used_rows()) * gate_scale;
  }
  const Tensor out = experts.run(kernels::permute(x, permutation), segments);
  return kernels::unpermute(out, permutation, weight, residual);
}

Tensor run_experts(const Tensor& x, const route::Routing& routing, const Experts& experts,
                   double gate_scale, const TokenPartition& partition,
                   const route::RouterSettings& router, const Tensor& residual) {
  if (!partition.is_expert_parallel()) {
    return run_local_experts(x, routing, experts, gate_scale, residual);
  }
  const ExpertParallel& parallel = partition.parallel;
  // Tokens per expert stay on the GPU. Grouped products not in bf16 synchronize with the host.
  if (kernels::has_grouped_mm(x) && !routing.input.is_dropless &&
      x.scalar_type() == at::kBFloat16 && !parallel.force_host_counts) {
    const DispatchLayout layout = make_fixed_layout(routing, partition, router);
    const int64_t rows = layout.remote_rows + layout.local_rows;
    const kernels::Permutation permutation = fixed_permutation(routing, layout.permutation, rows);
    const Tensor out =
        exchange_and_run(layout, kernels::permute(x, permutation), experts, parallel);
    const Tensor weight = scattered_weights(routing, layout.permutation, gate_scale, rows);
    return kernels::unpermute(out, permutation, weight, residual);
  }
  const Tensor out = [&] {  // [R, D] in the order of the plan; frees the dispatched rows
    const auto [layout, all_rows] = routing.input.is_dropless
                                        ? dispatch_dropless(x, routing, parallel)
                                        : dispatch_slots(x, routing, partition, router);
    return kernels::permute(exchange_and_run(layout, all_rows, experts, parallel),
                            kernels::make_permutation(layout.permutation, all_rows.size(0)));
  }();
  const int64_t rows = out.size(0);
  return kernels::unpermute(out, plan_permutation(routing, rows),
                            routing.weights.narrow(0, 0, rows) * gate_scale, residual);
}

Experts::Experts(kernels::Weight gate_up_weight, kernels::Weight down_weight, Adapter gate_up_lora,
                 Adapter down_lora)
    : gate_up(std::move(gate_up_weight)),
      down(std::move(down_weight)),
      gate_up_adapter(std::move(gate_up_lora)),
      down_adapter(std::move(down_lora)) {}

Tensor Experts::run(const Tensor& rows, const kernels::Segments& segments) const {
  MOE_CHECK(!segments.ends.defined() || (gate_up.is_one_tensor() && down.is_one_tensor()));
  if (!has_adapters()) {
    return kernels::grouped_swiglu(rows, gate_up, down, segments);
  }
  const Tensor hidden = with_adapter(rows, gate_up.tensor, gate_up_adapter, segments);
  return with_adapter(kernels::swiglu(hidden), down.tensor, down_adapter, segments);
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
  return share * expert.run(x, {x.size(0)});
}

}  // namespace moe::model
