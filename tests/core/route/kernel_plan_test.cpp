#include "tests/core/route/kernel_plan.h"

#include "core/route/route.h"
#include "tests/support/threads.h"

using namespace moe::route;
using namespace moe::test;

namespace {

// Returns the tensors that training reads, and the gradient.
std::vector<at::Tensor> all_of(const at::Tensor& drawn, const RouterSettings& settings,
                               const RoutingGroup& group) {
  const at::Tensor logits = drawn.clone().requires_grad_(true);
  const Routing routing = route(logits, settings, group);
  const at::Tensor upstream = at::linspace(-1, 1, routing.plan.token.size(0));
  Weighed found = weighed(routing, logits, upstream);
  std::vector<at::Tensor> all = {routing.input.experts_by_logit,
                                 routing.plan.token,
                                 routing.plan.expert,
                                 routing.plan.choice,
                                 routing.plan.count,
                                 routing.plan.rows,
                                 routing.plan.overflow_token,
                                 routing.count,
                                 routing.counters.counted,
                                 found.combine,
                                 found.weights,
                                 found.gradient};
  all.insert(all.end(), found.losses.begin(), found.losses.end());
  return all;
}

}  // namespace

TEST_CASE("the CPU routes as the rules do, unused rows too", "[route]") {
  for_each_case(
      {0, 1, 31, 33, 64, 1100},
      [](const at::Tensor& drawn, const RouterSettings& settings, const RoutingGroup& given) {
        RoutingGroup group = given;
        group.wants_z_loss = group.ranks != 2;
        const at::Tensor logits = drawn.clone().requires_grad_(true);
        const at::Tensor own = drawn.clone().requires_grad_(true);
        const Routing expected = route_by_rules(logits, settings, group);
        const Routing actual = route(own, settings, group);
        check_equal(actual.plan, expected.plan);
        CHECK(at::equal(actual.count, expected.count));
        check_counters(actual.counters, expected.counters);
        const at::Tensor upstream = at::randn({expected.plan.token.size(0)});
        check_close(weighed(actual, own, upstream), weighed(expected, logits, upstream));

        const at::Tensor again = (drawn * 0.9).requires_grad_(true);
        const at::Tensor own_again = again.detach().clone().requires_grad_(true);
        check_close(weighed(recompute_gates(own_again, actual, settings), own_again, upstream),
                    weighed(weigh_by_rules(again, expected, settings), again, upstream));
      });
}

TEST_CASE("the CPU routes under a bias as the rules do", "[route]") {
  at::manual_seed(2);
  for (const auto* text : {"top1:bias=0.1", "top2+ir+fr:cf=0.7,bias=0.1", "top3:cf=inf,bias=0"}) {
    for (const int64_t tokens : {0, 1, 33, 64, 1100}) {
      CAPTURE(text, tokens);
      const RouterSettings settings = parse_router(text);
      const at::Tensor logits = (at::randn({tokens, 4}) * 2).requires_grad_(true);
      const at::Tensor own = logits.detach().clone().requires_grad_(true);
      const at::Tensor bias = at::randn({4}) * 0.3;
      const RoutingGroup group = spread_over_ranks(tokens, 2);
      const Routing expected = route_by_rules(logits, settings, group, bias);
      const Routing actual = route(own, settings, group, bias);
      check_equal(actual.plan, expected.plan);
      check_counters(actual.counters, expected.counters);
      const at::Tensor upstream = at::randn({expected.plan.token.size(0)});
      check_close(weighed(actual, own, upstream), weighed(expected, logits, upstream));
    }
  }
}

TEST_CASE("any number of threads routes to the same bits", "[route]") {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({9000, 8}) * 2;
  for (const auto* text : {"top1", "top2+ir+fr:cf=0.7", "top2:cf=inf", "top2+ir:st=off"}) {
    for (const int64_t ranks : {1, 8}) {
      CAPTURE(text, ranks);
      RoutingGroup group = spread_over_ranks(logits.size(0), ranks);
      group.wants_z_loss = true;
      const RouterSettings settings = parse_router(text);
      by_any_threads([&] { return all_of(logits, settings, group); });
    }
  }
}
