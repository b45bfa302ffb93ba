#include <numeric>

#include "core/model/moe/all_to_all.h"
#include "core/model/moe/dispatch_layout.h"
#include "core/model/moe/token_dispatcher.h"
#include "core/route/rows.h"
#include "kernels/ops/grouped_linear.h"

namespace moe::model {

using at::Tensor;

namespace {

Tensor gather_by_expert(const Tensor& x, const route::Routing& routing,
                        const std::vector<int64_t>& tokens_per_expert) {
  const int64_t rows =
      std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
  return kernels::permute(x, plan_permutation(routing, rows));
}

// rows[index[i]] for each i; every row is named once at most.
Tensor permute_by(const Tensor& rows, const Tensor& index) {
  return kernels::permute(rows, kernels::permutation_of(index, rows.size(0)));
}

// [size, D] with rows[i] at index[i], zeros elsewhere: the transpose of permute_by.
Tensor unpermute_to(const Tensor& rows, const Tensor& index, int64_t size) {
  return kernels::unpermute(rows, kernels::permutation_of(index, size));
}

// x's rows at a plan's tokens, each where `permutation` [R] says.
Tensor rows_permuted(const Tensor& x, const route::Routing& routing, const Tensor& permutation) {
  const auto permuted = [&](const Tensor& of_plan) {
    const Tensor used = of_plan.narrow(0, 0, permutation.size(0));
    return at::empty_like(used).index_copy_(0, permutation, used);
  };
  return kernels::permute(
      x, kernels::permutation_of(permuted(routing.plan.token), permuted(routing.plan.choice),
                                 x.size(0), choices_of(routing)));
}

// [remote rows | local rows], D wide; the first part is the send buffer.
Tensor permuted_rows(const Tensor& x, const route::Routing& routing,
                     const std::vector<int64_t>& tokens_per_expert, const DispatchLayout& layout) {
  if (!layout.has_padding) {
    return rows_permuted(x, routing, layout.permutation);
  }
  const int64_t slots = layout.remote_rows + layout.local_rows;
  return unpermute_to(gather_by_expert(x, routing, tokens_per_expert), layout.permutation, slots);
}

// Where rows go, and the rows as they go.
struct Dispatch {
  DispatchLayout layout;
  Tensor rows;  // [remote rows | local rows], D wide
};

// With what the host knows: the sizes of the buffers of a router with a capacity, and on the CPU
// everything.
Dispatch dispatch_by_host(const Tensor& x, const route::Routing& routing, const TokenSpread& spread,
                          const route::RouterSettings& router) {
  const std::vector<int64_t> tokens_per_expert = route::to_host(routing.plan.rows);
  Dispatch dispatch{make_dispatch_layout(routing, spread, router, tokens_per_expert), {}};
  dispatch.rows = permuted_rows(x, routing, tokens_per_expert, dispatch.layout);
  return dispatch;
}

// A dropless router's plan on a GPU: the counts of all processes are the one thing that the host
// waits for, where it can behind the gathering of rows.
Dispatch dispatch_by_gpu(const Tensor& x, const route::Routing& routing,
                         const ExpertParallel& parallel) {
  DispatchLayoutOnGpu counted(routing, parallel);
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

// Outputs of the local experts: of received rows, which go back, and of local rows.
struct LocalOutputs {
  Tensor received, local;
};

// [received rows | local rows], or the received ones alone, through the experts and back to where
// they were.
Tensor run_in_order(const DispatchLayout& layout, Tensor rows, int64_t ep_rank, bool with_local,
                    const Experts& experts) {
  const int64_t all = rows.size(0), received = all - (with_local ? layout.local_rows : 0);
  const ExpertOrder order =
      order_by_expert(layout, rows.narrow(0, 0, received), ep_rank, with_local);
  const Tensor in_order = permute_by(rows, order.permutation);
  rows.reset();
  return unpermute_to(experts.run(in_order, order.tokens_per_expert), order.permutation, all);
}

// The same of a fixed layout; without `with_received` of local rows alone.
Tensor run_in_segments(const DispatchLayout& layout, Tensor rows, int64_t ep_rank,
                       bool with_received, const Experts& experts) {
  const SegmentOrder order = order_in_segments(layout, ep_rank, with_received);
  const Tensor in_order = kernels::permute(rows, order.permutation);
  rows.reset();
  return kernels::unpermute(experts.run_segments(in_order, order.ends), order.permutation);
}

// All rows are waited for, and every expert has one product.
LocalOutputs run_at_once(const DispatchLayout& layout, const AllToAllRows& dispatch,
                         const std::vector<Tensor>& rows, int64_t ep_rank, const Experts& experts) {
  const Tensor received = dispatch(rows[0]);
  const auto run = layout.local_counts.defined() ? run_in_segments : run_in_order;
  const auto parts = run(layout, at::cat({received, rows[1]}), ep_rank, /*all=*/true, experts)
                         .split_with_sizes({received.size(0), layout.local_rows});
  return {parts[0], parts[1]};
}

// The local rows have a product of their own while the others travel.
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

// Rows of the plan where a fixed layout of `room` rows has them, zeros where it has none. What the
// plan does not use is written behind the last, and cut off.
kernels::Permutation fixed_permutation(const route::Routing& routing, const Tensor& permutation,
                                       int64_t room) {
  const int64_t tokens = routing.input.tokens(), choices = choices_of(routing);
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

class ExpertParallelDispatcher : public TokenDispatcher {
 public:
  ExpertParallelDispatcher(const TokenSpread& spread, const route::RouterSettings& router)
      : spread_(spread), router_(router) {}

  Tensor run(const Tensor& x, const route::Routing& routing, const Experts& experts,
             double gate_scale, const Tensor& residual) const override {
    if (has_fixed_layout(x, routing)) {
      return run_fixed(x, routing, experts, gate_scale, residual);
    }
    const Tensor out = run_rows(x, routing, experts);
    const int64_t rows = out.size(0);
    return kernels::unpermute(out, plan_permutation(routing, rows),
                              routing.weights.narrow(0, 0, rows) * gate_scale, residual);
  }

 private:
  // Whether the host knows all sizes beforehand. The experts' rows are counted on the GPU then, and
  // only in bf16 is there a product for that which does not wait (kernels/ops/grouped_linear.h).
  bool has_fixed_layout(const Tensor& x, const route::Routing& routing) const {
    return kernels::has_grouped_mm(x) && !routing.input.dropless &&
           x.scalar_type() == at::kBFloat16 && !spread_.parallel.reads_counts;
  }

  Tensor run_fixed(const Tensor& x, const route::Routing& routing, const Experts& experts,
                   double gate_scale, const Tensor& residual) const {
    const DispatchLayout layout = make_fixed_layout(routing, spread_, router_);
    const int64_t room = layout.remote_rows + layout.local_rows;
    const kernels::Permutation permutation = fixed_permutation(routing, layout.permutation, room);
    const Tensor out = run_experts(layout, kernels::permute(x, permutation), experts);
    const Tensor weight = at::zeros({room + 1}, routing.weights.options())
                              .index_copy(0, layout.permutation, routing.weights * gate_scale)
                              .narrow(0, 0, room);
    return kernels::unpermute(out, permutation, weight, residual);
  }

  // [R, D] in the plan's order: what the experts make of x's rows at the plan's tokens.
  Tensor run_rows(const Tensor& x, const route::Routing& routing, const Experts& experts) const {
    const ExpertParallel& parallel = spread_.parallel;
    const bool on_gpu = x.is_cuda() && routing.input.dropless;
    const auto [layout, all_rows] = on_gpu ? dispatch_by_gpu(x, routing, parallel)
                                           : dispatch_by_host(x, routing, spread_, router_);
    return permute_by(run_experts(layout, all_rows, experts), layout.permutation);
  }

  // [remote rows | local rows], as `all_rows` are: what the experts make of them.
  Tensor run_experts(const DispatchLayout& layout, const Tensor& all_rows,
                     const Experts& experts) const {
    const ExpertParallel& parallel = spread_.parallel;
    const auto rows = all_rows.split_with_sizes({layout.remote_rows, layout.local_rows});
    const AllToAllRows dispatch(*parallel.group, layout.send_counts, layout.receive_counts);
    const LocalOutputs out = (parallel.overlap_all_to_all ? run_overlapped : run_at_once)(
        layout, dispatch, rows, parallel.ep_rank(), experts);
    const AllToAllRows combine(*parallel.group, layout.receive_counts, layout.send_counts);
    return at::cat({combine(out.received), out.local});
  }

  const TokenSpread& spread_;
  const route::RouterSettings& router_;
};

}  // namespace

std::unique_ptr<TokenDispatcher> expert_parallel_dispatcher(const TokenSpread& spread,
                                                            const route::RouterSettings& router) {
  return std::make_unique<ExpertParallelDispatcher>(spread, router);
}

}  // namespace moe::model
