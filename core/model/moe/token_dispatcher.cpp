#include "core/model/moe/token_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "core/route/rows.h"
#include "kernels/ops/grouped_linear.h"

namespace moe::model {

using at::Tensor;

namespace {

class LocalDispatcher : public TokenDispatcher {
 public:
  Tensor run(const Tensor& x, const route::Routing& routing, const Experts& experts,
             double gate_scale, const Tensor& residual) const override {
    const auto run_rows = stays_on_device(x, routing) ? run_segments : run_counted;
    return run_rows(x, routing, experts, gate_scale, residual);
  }

 private:
  // LibTorch's grouped products in f32 wait for the host in any case: without a capacity it may as
  // well say which experts have no rows, whose weights are then not widened.
  static bool stays_on_device(const Tensor& x, const route::Routing& routing) {
    return kernels::has_grouped_mm(x) && has_tight_room(routing) &&
           routing.input.experts() <= kernels::kMaxSegmentExperts &&
           (!routing.input.dropless || x.scalar_type() == at::kBFloat16);
  }

  // Unused rows of the plan stand last: with their counts on the host the products skip them.
  static Tensor run_counted(const Tensor& x, const route::Routing& routing, const Experts& experts,
                            double gate_scale, const Tensor& residual) {
    const std::vector<int64_t> tokens_per_expert = route::to_host(routing.plan.rows);
    const int64_t rows =
        std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
    const kernels::Permutation permutation = plan_permutation(routing, rows);
    const Tensor out = experts.run(kernels::permute(x, permutation), tokens_per_expert);
    return kernels::unpermute(out, permutation, routing.weights.narrow(0, 0, rows) * gate_scale,
                              residual);
  }

  static Tensor run_segments(const Tensor& x, const route::Routing& routing, const Experts& experts,
                             double gate_scale, const Tensor& residual) {
    const route::Plan& plan = routing.plan;
    const kernels::SegmentedRows segmented = kernels::segment_rows(
        plan.token, plan.expert, plan.choice, plan.rows, x.size(0), choices_of(routing));
    // Rows that the plan does not use weigh something at P, which is cut off.
    const int64_t rows = segmented.permutation.token.size(0);  // P
    const Tensor weight = at::zeros({rows + 1}, routing.weights.options())
                              .index_copy(0, segmented.row_of_plan, routing.weights * gate_scale)
                              .narrow(0, 0, rows);
    const Tensor out =
        experts.run_segments(kernels::permute(x, segmented.permutation), segmented.ends);
    return kernels::unpermute(out, segmented.permutation, weight, residual);
  }
};

}  // namespace

std::unique_ptr<TokenDispatcher> local_dispatcher() { return std::make_unique<LocalDispatcher>(); }

std::unique_ptr<TokenDispatcher> make_token_dispatcher(const TokenSpread& spread,
                                                       const route::RouterSettings& router) {
  return spread.is_expert_parallel() ? expert_parallel_dispatcher(spread, router)
                                     : local_dispatcher();
}

bool has_tight_room(const route::Routing& routing) {
  return !routing.input.dropless || routing.counters.tokens_request;
}

int64_t choices_of(const route::Routing& routing) {
  const int64_t with_rectification = routing.input.k + 2;
  return has_tight_room(routing) ? with_rectification
                                 : std::max(routing.input.experts(), with_rectification);
}

kernels::Permutation plan_permutation(const route::Routing& routing, int64_t rows) {
  return kernels::permutation_of(routing.plan.token.narrow(0, 0, rows),
                                 routing.plan.choice.narrow(0, 0, rows), routing.input.tokens(),
                                 choices_of(routing));
}

}  // namespace moe::model
