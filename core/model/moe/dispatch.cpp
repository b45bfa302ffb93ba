#include "core/model/moe/dispatch.h"

#include <algorithm>
#include <numeric>

#include "core/model/moe/all_to_all.h"
#include "core/model/moe/dispatch_layout.h"

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

// [remote rows | local rows | shadowed rows], D wide; the first part is the send buffer.
Tensor permuted_rows(const Tensor& x, const route::Routing& routing,
                     const std::vector<int64_t>& tokens_per_expert, const DispatchLayout& layout) {
  if (layout.has_padding) {
    const int64_t slots = layout.remote_rows + layout.local_rows + layout.shadowed_rows;
    return unpermute_to(gather_by_expert(x, routing, tokens_per_expert), layout.permutation, slots);
  }
  const auto permuted = [&](const Tensor& of_plan) {
    const Tensor used = of_plan.narrow(0, 0, layout.permutation.size(0));
    return at::empty_like(used).index_copy_(0, layout.permutation, used);
  };
  return kernels::permute(
      x, kernels::permutation_of(permuted(routing.plan.token), permuted(routing.plan.choice),
                                 x.size(0), choices_of(routing)));
}

// Outputs of the local experts: of received rows, which go back, and of local rows.
struct LocalOutputs {
  Tensor received, local;
};

// All rows are waited for, and every expert has one product.
LocalOutputs run_at_once(const DispatchLayout& layout, const AllToAllRows& dispatch,
                         const std::vector<Tensor>& rows, int64_t ep_rank, const RunExperts& run) {
  const Tensor received = dispatch(rows[0]);
  const ExpertOrder order = order_by_expert(layout, received, ep_rank, /*with_local=*/true);
  const Tensor out =
      run(permute_by(at::cat({received, rows[1]}), order.permutation), order.tokens_per_expert);
  const int64_t received_rows = received.size(0);
  const auto parts = unpermute_to(out, order.permutation, received_rows + layout.local_rows)
                         .split_with_sizes({received_rows, layout.local_rows});
  return {parts[0], parts[1]};
}

// The local rows have a product of their own while the others travel.
LocalOutputs run_overlapped(const DispatchLayout& layout, const AllToAllRows& dispatch,
                            const std::vector<Tensor>& rows, int64_t ep_rank,
                            const RunExperts& run) {
  const Tensor receive_buffer = dispatch.start(rows[0]);
  const Tensor local = run(rows[1], layout.local_tokens_per_expert);
  const Tensor received = dispatch.finish(receive_buffer);
  const ExpertOrder order = order_by_expert(layout, received, ep_rank, /*with_local=*/false);
  const Tensor out = run(permute_by(received, order.permutation), order.tokens_per_expert);
  return {unpermute_to(out, order.permutation, received.size(0)), local};
}

}  // namespace

int64_t choices_of(const route::Routing& routing) {
  const int64_t with_rectification = routing.input.k + 2;
  return routing.input.dropless ? std::max(routing.input.experts(), with_rectification)
                                : with_rectification;
}

kernels::Permutation plan_permutation(const route::Routing& routing, int64_t rows) {
  return kernels::permutation_of(routing.plan.token.narrow(0, 0, rows),
                                 routing.plan.choice.narrow(0, 0, rows), routing.input.tokens(),
                                 choices_of(routing));
}

Tensor dispatch_local(const Tensor& x, const route::Routing& routing,
                      const std::vector<int64_t>& tokens_per_expert, const RunExperts& run) {
  return run(gather_by_expert(x, routing, tokens_per_expert), tokens_per_expert);
}

Tensor dispatch_expert_parallel(const Tensor& x, const route::Routing& routing,
                                const TokenSpread& spread, const route::RouterSettings& router,
                                const std::vector<int64_t>& tokens_per_expert,
                                const RunExperts& run, const ShadowExperts& shadow) {
  const ExpertParallel& parallel = spread.parallel;
  const DispatchLayout layout = make_dispatch_layout(routing, spread, router, tokens_per_expert,
                                                     /*may_shadow=*/static_cast<bool>(shadow));
  const RunShadowed runs =
      layout.shadowed_experts.empty() ? RunShadowed{run, {}} : shadow(layout.shadowed_experts);
  const auto rows =
      permuted_rows(x, routing, tokens_per_expert, layout)
          .split_with_sizes({layout.remote_rows, layout.local_rows, layout.shadowed_rows});
  const AllToAllRows dispatch(*parallel.group, layout.send_counts, layout.receive_counts);
  const LocalOutputs out = (parallel.overlap_all_to_all ? run_overlapped : run_at_once)(
      layout, dispatch, rows, parallel.ep_rank(), runs.owned);
  const AllToAllRows combine(*parallel.group, layout.receive_counts, layout.send_counts);
  const Tensor return_buffer = combine.start(out.received);
  // The replicas run while outputs travel: a process with replicas has few rows of its own and
  // would wait.
  const Tensor shadowed =
      runs.replicas ? runs.replicas(rows[2], layout.shadowed_tokens_per_expert) : rows[2];
  const std::vector<Tensor> outputs = {combine.finish(return_buffer), out.local, shadowed};
  return permute_by(at::cat(outputs), layout.permutation);
}

}  // namespace moe::model
