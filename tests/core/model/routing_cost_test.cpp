// What routing costs beside the work it routes: logits, plan, weights, losses and counters, forward
// and backward, as a share of the layer's expert matrix products in the same run. Hidden; run with
//   build/cpu/core_model_routing_cost_test '[!benchmark]'

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

#include "core/model/moe_layer.h"
#include "kernels/grouped_swiglu.h"
#include "tests/support/catch.h"

namespace moe::test {
namespace {

constexpr int64_t kTokens = 4096, kWidth = 1024, kInner = 2816;  // T, D, F: P2's layer
constexpr int kRepeats = 7;

struct Spread {
  double best = 0, median = 0, worst = 0;  // milliseconds
};

template <typename Work>
Spread time_of(Work work) {
  work();
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[kRepeats / 2], times.back()};
}

// Routing alone, with the gradients that reach the router's weights and x.
Spread routing_time(const torch::Tensor& x, const torch::Tensor& router, const char* text) {
  const auto settings = route::parse_router(text);
  const auto group = route::spread_over_ranks(kTokens, router.size(0));
  return time_of([&] {
    const auto at = x.detach().requires_grad_(true), weights = router.detach().requires_grad_(true);
    const auto routing = route::route(model::router_logits(at, weights), settings, group);
    (routing.weights.sum() + 0.01 * routing.losses.load_balance).backward();
    route::read_counters({routing.counters});
  });
}

// The products of top1's rows: T rows in equal parts.
Spread product_time(const torch::Tensor& x, int64_t experts) {
  const auto gate_up = torch::randn({experts, 2 * kInner, kWidth}) * 0.02;
  const auto down = torch::randn({experts, kWidth, kInner}) * 0.02;
  const std::vector<int64_t> loads(experts, kTokens / experts);
  return time_of([&] {
    const auto at = x.detach().requires_grad_(true), first = gate_up.detach().requires_grad_(true),
               second = down.detach().requires_grad_(true);
    kernels::grouped_swiglu(at, first, second, loads).sum().backward();
  });
}

}  // namespace

TEST_CASE("routing is a small share of the expert products", "[.][!benchmark]") {
  torch::manual_seed(44);
  const auto x = torch::randn({kTokens, kWidth});
  std::printf("T %ld, D %ld, F %ld, %d threads; milliseconds: best, median, worst of %d\n",
              kTokens,
              kWidth,
              kInner,
              at::get_num_threads(),
              kRepeats);
  for (const int64_t experts : {8, 32}) {
    const auto router = torch::randn({experts, kWidth}) * 0.02;
    const Spread products = product_time(x, experts);
    const Spread plain = routing_time(x, router, "top1");
    const Spread mended = routing_time(x, router, "top1+ir+fr");
    std::printf("E %ld products    %8.2f %8.2f %8.2f\n",
                experts,
                products.best,
                products.median,
                products.worst);
    for (const auto& [name, time] : {std::pair{"top1", plain}, {"top1+ir+fr", mended}}) {
      std::printf("E %ld %-11s %8.2f %8.2f %8.2f   %.2f %% of the products\n",
                  experts,
                  name,
                  time.best,
                  time.median,
                  time.worst,
                  100 * time.median / products.median);
    }
    CHECK(plain.median < 0.03 * products.median);
    CHECK(mended.median - plain.median < 0.02 * products.median);
  }
}

}  // namespace moe::test
