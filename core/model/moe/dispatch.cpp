#include "core/model/moe/dispatch.h"

#include <numeric>

#include "core/model/moe/all_to_all.h"
#include "core/model/moe/dispatch_layout.h"
#include "core/model/moe/row_moves.h"
#include "kernels/ops/token_rows.h"

namespace moe::model {

using at::Tensor;

namespace {

Tensor gathered(const Tensor& x, const route::Routing& routing, const std::vector<int64_t>& loads) {
  const int64_t rows = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  return kernels::gather_rows(x, routing.plan.token.narrow(0, 0, rows));
}

// [rows that leave | rows that stay | rows at borrowed experts].
Tensor departing(const Tensor& x, const route::Routing& routing, const std::vector<int64_t>& loads,
                 const TravelPlan& plan) {
  if (plan.has_padding) {
    return placed(gathered(x, routing, loads), plan.place, plan.away + plan.home + plan.borrowed);
  }
  const Tensor token = routing.plan.token.narrow(0, 0, plan.place.size(0));
  return kernels::gather_rows(x, at::empty_like(token).index_copy_(0, plan.place, token));
}

// What the experts here made: of rows received, to be sent back, and of rows that stayed.
struct Made {
  Tensor received, home;
};

// Everything waits for what travels, and every expert has one product.
Made run_together(const TravelPlan& plan, const RowExchange& exchange,
                  const std::vector<Tensor>& leaving, int64_t place, const RunRows& run) {
  const Tensor received = exchange(leaving[0]);
  const ExpertOrder order = order_by_expert(plan, received, place, /*with_home=*/true);
  const Tensor out = run(picked(at::cat({received, leaving[1]}), order.index), order.loads);
  const int64_t others = received.size(0);
  const auto parts =
      placed(out, order.index, others + plan.home).split_with_sizes({others, plan.home});
  return {parts[0], parts[1]};
}

// The rows that stay have a product of their own while the others travel.
Made run_apart(const TravelPlan& plan, const RowExchange& exchange,
               const std::vector<Tensor>& leaving, int64_t place, const RunRows& run) {
  const Tensor arriving = exchange.start(leaving[0]);
  const Tensor home = run(leaving[1], plan.home_loads);
  const Tensor received = exchange.finish(arriving);
  const ExpertOrder order = order_by_expert(plan, received, place, /*with_home=*/false);
  const Tensor out = run(picked(received, order.index), order.loads);
  return {placed(out, order.index, received.size(0)), home};
}

}  // namespace

Tensor dispatch_here(const Tensor& x, const route::Routing& routing,
                     const std::vector<int64_t>& loads, const RunRows& run) {
  return run(gathered(x, routing, loads), loads);
}

Tensor dispatch_among(const Tensor& x, const route::Routing& routing, const Sharing& sharing,
                      const std::vector<int64_t>& loads, const RunRows& run, const Lend& lend) {
  const ExpertParallel& parallel = sharing.spread.parallel;
  const TravelPlan plan = plan_travel(routing, sharing, loads, static_cast<bool>(lend));
  const RunLent runs = plan.lent.empty() ? RunLent{run, {}} : lend(plan.lent);
  const auto leaving =
      departing(x, routing, loads, plan).split_with_sizes({plan.away, plan.home, plan.borrowed});
  const RowExchange there(*parallel.group, plan.sent, plan.received);
  const Made made = (parallel.overlaps ? run_apart : run_together)(plan, there, leaving,
                                                                   parallel.place(), runs.own);
  const RowExchange back(*parallel.group, plan.received, plan.sent);
  const Tensor returning = back.start(made.received);
  // Here, as who borrows is who has few rows of its own and would wait.
  const Tensor borrowed =
      runs.borrowed ? runs.borrowed(leaving[2], plan.borrowed_loads) : leaving[2];
  const std::vector<Tensor> all = {back.finish(returning), made.home, borrowed};
  return picked(at::cat(all), plan.place);
}

}  // namespace moe::model
