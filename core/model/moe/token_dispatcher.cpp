#include "core/model/moe/token_dispatcher.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/route/plan.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"

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

// Returns true if run_segments() is used. LibTorch's grouped products in f32 synchronize with the
// host anyway, so dropless routers count on the host in f32: experts without rows are then skipped.
bool can_stay_on_device(const Tensor& x, const route::Routing& routing) {
  return kernels::has_grouped_mm(x) && has_static_row_bound(routing) &&
         routing.input.experts() <= kernels::kMaxSegmentExperts &&
         (!routing.input.is_dropless || x.scalar_type() == at::kBFloat16);
}

// Copies the tokens per expert to the host. Does not compute unused rows, which are last.
Tensor run_counted(const Tensor& x, const route::Routing& routing, const Experts& experts,
                   double gate_scale, const Tensor& residual) {
  const std::vector<int64_t> tokens_per_expert = route::to_host(routing.plan.rows);
  const int64_t rows =
      std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
  const kernels::Permutation permutation = plan_permutation(routing, rows);
  const Tensor out = experts.run(kernels::permute(x, permutation), tokens_per_expert);
  return kernels::unpermute(out, permutation, routing.weights.narrow(0, 0, rows) * gate_scale,
                            residual);
}

// Copies nothing to the host. Unused rows are part of the products.
Tensor run_segments(const Tensor& x, const route::Routing& routing, const Experts& experts,
                    double gate_scale, const Tensor& residual) {
  const route::Plan& plan = routing.plan;
  const kernels::SegmentedRows segmented = kernels::segment_rows(
      plan.token, plan.expert, plan.choice, plan.rows, x.size(0), max_choices(routing));
  const Tensor weight = scattered_weights(routing, segmented.row_of_plan, gate_scale,
                                          segmented.permutation.token.size(0));
  const Tensor out =
      experts.run_segments(kernels::permute(x, segmented.permutation), segmented.ends);
  return kernels::unpermute(out, segmented.permutation, weight, residual);
}

// State of an AllToAllRows that its autograd nodes share.
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

// All-to-all of rows whose backward is the reverse all-to-all. Computations between start() and
// finish() overlap with the transfer, in backward too, where finish() starts it and start() waits.
// Every process of `group` must call start() and finish() in the same order, also without rows, and
// takes part in backward: a gradient exists by the trained weights, never by the number of rows.
class AllToAllRows {
 public:
  // Sends send_counts[q] rows to process q and receives receive_counts[q] rows from it.
  AllToAllRows(distributed::Comm& group, std::vector<int64_t> send_counts,
               std::vector<int64_t> receive_counts)
      : state_(c10::make_intrusive<AllToAllState>(group, std::move(send_counts),
                                                  std::move(receive_counts))) {}

  // Sends rows [sum of send_counts, D]. Returns the buffer [sum of receive_counts, D], which is not
  // filled yet and may only be passed to finish().
  Tensor start(const Tensor& rows) const { return Start::apply(rows, state_); }
  Tensor finish(const Tensor& receive_buffer) const {
    return Finish::apply(receive_buffer, state_);
  }
  Tensor operator()(const Tensor& rows) const { return finish(start(rows)); }

 private:
  State state_;
};

// Returns rows[index]. Indices are unique.
Tensor permute_by(const Tensor& rows, const Tensor& index) {
  return kernels::permute(rows, kernels::make_permutation(index, rows.size(0)));
}

// Returns [size, D] with rows[i] at index[i], zeros elsewhere: the transpose of permute_by().
Tensor unpermute_to(const Tensor& rows, const Tensor& index, int64_t size) {
  return kernels::unpermute(rows, kernels::make_permutation(index, size));
}

// Returns [n, D] with row permutation[r] = x[token of row r of the plan]; permutation [n] i64.
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
  dispatch.rows =
      unpermute_to(in_plan_order, layout.permutation, layout.remote_rows + layout.local_rows);
  return dispatch;
}

// Dispatches the plan of a dropless router. The host waits for the counts of all processes, if it
// knows the number of rows after it has enqueued the permutation of x.
Dispatch dispatch_dropless(const Tensor& x, const route::Routing& routing,
                           const ExpertParallel& parallel) {
  DroplessLayout counted(routing, parallel);
  Tensor permutation, rows;
  const auto gather = [&](int64_t count) {
    permutation = counted.permutation(count);
    rows = rows_permuted(x, routing, permutation);
  };
  if (counted.known_rows()) {
    gather(*counted.known_rows());
  }
  Dispatch dispatch{counted.wait(), {}};
  if (!counted.known_rows()) {
    gather(counted.rows());
  }
  dispatch.layout.permutation = permutation;
  dispatch.rows = rows;
  return dispatch;
}

// Outputs of the experts of this process, for received rows and for local rows.
struct LocalOutputs {
  Tensor received, local;
};

// Returns the outputs of the experts, in the order of `rows`: [received rows | local rows], the
// latter only if `with_local`.
Tensor run_in_order(const DispatchLayout& layout, Tensor rows, int64_t ep_rank, bool with_local,
                    const Experts& experts) {
  const int64_t all = rows.size(0), received = all - (with_local ? layout.local_rows : 0);
  const ExpertOrder order =
      order_by_expert(layout, rows.narrow(0, 0, received), ep_rank, with_local);
  const Tensor in_order = permute_by(rows, order.permutation);
  rows.reset();
  return unpermute_to(experts.run(in_order, order.tokens_per_expert), order.permutation, all);
}

// As run_in_order() for a fixed layout. Without `with_received`, `rows` are local rows only.
Tensor run_in_segments(const DispatchLayout& layout, Tensor rows, int64_t ep_rank,
                       bool with_received, const Experts& experts) {
  const SegmentOrder order = order_in_segments(layout, ep_rank, with_received);
  const Tensor in_order = kernels::permute(rows, order.permutation);
  rows.reset();
  return kernels::unpermute(experts.run_segments(in_order, order.ends), order.permutation);
}

// Waits for the received rows, and then runs the experts on all rows at once.
LocalOutputs run_at_once(const DispatchLayout& layout, const AllToAllRows& dispatch,
                         const std::vector<Tensor>& rows, int64_t ep_rank, const Experts& experts) {
  const Tensor received = dispatch(rows[0]);
  const auto run = layout.local_counts.defined() ? run_in_segments : run_in_order;
  const auto parts = run(layout, at::cat({received, rows[1]}), ep_rank, /*all=*/true, experts)
                         .split_with_sizes({received.size(0), layout.local_rows});
  return {parts[0], parts[1]};
}

// Runs the experts on local rows during the all-to-all, then on received rows.
LocalOutputs run_overlapped(const DispatchLayout& layout, const AllToAllRows& dispatch,
                            const std::vector<Tensor>& rows, int64_t ep_rank,
                            const Experts& experts) {
  const Tensor receive_buffer = dispatch.start(rows[0]);
  const Tensor local =
      layout.local_counts.defined()
          ? run_in_segments(layout, rows[1], ep_rank, /*with_received=*/false, experts)
          : experts.run(rows[1], layout.local_tokens_per_expert);
  const Tensor received = dispatch.finish(receive_buffer);
  return {run_in_order(layout, received, ep_rank, /*with_local=*/false, experts), local};
}

// Returns the permutation of the plan's rows into the `room` rows of a fixed layout, whose other
// rows are zeros. Unused rows of the plan have permutation[r] = room, which is cut off.
kernels::Permutation fixed_permutation(const route::Routing& routing, const Tensor& permutation,
                                       int64_t room) {
  const int64_t tokens = routing.input.tokens(), choices = max_choices(routing);
  const auto scattered = [](const Tensor& values, const Tensor& index, int64_t size) {
    return at::full({size + 1}, -1, values.options())
        .index_copy_(0, index, values)
        .narrow(0, 0, size);
  };
  const Tensor choice = (routing.plan.token * choices + routing.plan.choice)
                            .masked_fill(permutation == room, tokens * choices);
  return {scattered(routing.plan.token, permutation, room),
          scattered(permutation.to(at::kInt), choice, tokens * choices).view({tokens, choices}),
          {},
          tokens,
          choices};
}

// Returns the outputs of the experts for all_rows [remote rows | local rows], in the same order.
Tensor exchange_and_run(const DispatchLayout& layout, const Tensor& all_rows,
                        const Experts& experts, const ExpertParallel& parallel) {
  const auto rows = all_rows.split_with_sizes({layout.remote_rows, layout.local_rows});
  const AllToAllRows dispatch(*parallel.group, layout.send_counts, layout.receive_counts);
  const LocalOutputs out = (parallel.overlap_all_to_all ? run_overlapped : run_at_once)(
      layout, dispatch, rows, parallel.ep_rank(), experts);
  const AllToAllRows combine(*parallel.group, layout.receive_counts, layout.send_counts);
  return at::cat({combine(out.received), out.local});
}

}  // namespace

int64_t max_choices(const route::Routing& routing) {
  const int64_t with_rectification = routing.input.k + 2;
  return has_static_row_bound(routing) ? with_rectification
                                       : std::max(routing.input.experts(), with_rectification);
}

Tensor run_local_experts(const Tensor& x, const route::Routing& routing, const Experts& experts,
                         double gate_scale, const Tensor& residual) {
  const auto run = can_stay_on_device(x, routing) ? run_segments : run_counted;
  return run(x, routing, experts, gate_scale, residual);
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
    const int64_t room = layout.remote_rows + layout.local_rows;
    const kernels::Permutation permutation = fixed_permutation(routing, layout.permutation, room);
    const Tensor out =
        exchange_and_run(layout, kernels::permute(x, permutation), experts, parallel);
    const Tensor weight = scattered_weights(routing, layout.permutation, gate_scale, room);
    return kernels::unpermute(out, permutation, weight, residual);
  }
  const Tensor out = [&] {  // [R, D] in the order of the plan; frees the dispatched rows
    const auto [layout, all_rows] = routing.input.is_dropless
                                        ? dispatch_dropless(x, routing, parallel)
                                        : dispatch_slots(x, routing, partition, router);
    return permute_by(exchange_and_run(layout, all_rows, experts, parallel), layout.permutation);
  }();
  const int64_t rows = out.size(0);
  return kernels::unpermute(out, plan_permutation(routing, rows),
                            routing.weights.narrow(0, 0, rows) * gate_scale, residual);
}

}  // namespace moe::model
