#pragma once
// Comparison of the fused kernels of top-k routers with the rules, gates, losses and counters in
// LibTorch operations.

#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "core/route/plan.h"
#include "core/route/route.h"
#include "tests/support/catch.h"

namespace moe::test {

// Computes gates and losses for the plan of `decided` without fused kernels.
inline route::Routing weigh_by_rules(const at::Tensor& logits, const route::Routing& decided,
                                     const route::RouterSettings& settings) {
  const route::RouterFunctions& functions = route::router_functions(settings);
  route::Routing routing = decided;
  routing.combine = functions.gates(logits, routing.count, settings);
  routing.weights = route::row_weights(routing.combine, routing.count, routing.input, routing.plan);
  routing.losses = functions.losses(logits, routing.input, routing.count, settings);
  if (routing.input.wants_z_loss) {
    routing.losses.z = route::z_loss(logits, routing.input);
  }
  return routing;
}

// Routes without fused kernels. `scores` [T, E] replace the scores of the family.
inline route::Routing route_by_rules(const at::Tensor& logits,
                                     const route::RouterSettings& settings,
                                     const route::RoutingGroup& group, const at::Tensor& bias = {},
                                     const at::Tensor& scores = {}) {
  const route::RouterFunctions& functions = route::router_functions(settings);
  route::Routing routing;
  routing.input = route::make_input(
      logits, scores.defined() ? scores : functions.scores(logits.detach()), settings, group, bias);
  for (const auto& rule : functions.rules(settings)) {
    routing.plan = rule(routing.input, routing.plan);
  }
  routing.count = route::multiplicities(routing.input, routing.plan);
  routing.counters = route::count_plan(routing.input, routing.plan, settings);
  return weigh_by_rules(logits, routing, settings);
}

inline constexpr const char* kPlannedRouters[] = {"top1",
                                                  "top2",
                                                  "top1+ir",
                                                  "top1+fr",
                                                  "top1+ir+fr",
                                                  "top2+ir+fr:cf=0.7",
                                                  "top2+ir+fr:order=score",
                                                  "top3:order=score",
                                                  "top2:cf=inf",
                                                  "top2+fr:cf=inf",
                                                  "top2+ir:cf=inf",
                                                  "top4+ir+fr:cf=2",
                                                  "top2+ir:st=off",
                                                  "top2+ir+fr:gate=none",
                                                  "top3+ir:lb=selected,cf=0.5"};

inline void check_equal(const route::Plan& actual, const route::Plan& expected) {
  CHECK(at::equal(actual.token.cpu(), expected.token));
  CHECK(at::equal(actual.expert.cpu(), expected.expert));
  CHECK(at::equal(actual.choice.cpu(), expected.choice));
  CHECK(at::equal(actual.count.cpu(), expected.count));
  CHECK(at::equal(actual.rows.cpu(), expected.rows));
  CHECK(at::equal(actual.overflow_token.cpu(), expected.overflow_token));
  CHECK(at::equal(actual.overflow_expert.cpu(), expected.overflow_expert));
  CHECK(at::equal(actual.overflow_choice.cpu(), expected.overflow_choice));
}

// Calls `check` with random batches for each router, including ties and padding.
template <typename Check>
void for_each_case(const std::vector<int64_t>& sizes, Check check) {
  at::manual_seed(1);
  for (const auto* text : kPlannedRouters) {
    for (const int64_t tokens : sizes) {
      for (const int64_t ranks : {1, 2, 4}) {
        for (const bool ties : {false, true}) {
          CAPTURE(text, tokens, ranks, ties);
          at::Tensor logits = at::randn({tokens, 4}) * 2;
          logits = ties ? logits.round() : logits;
          route::RoutingGroup group = route::spread_over_ranks(tokens, ranks);
          if (tokens > 5) {
            group.home[2] = group.home[5] = -1;
          }
          check(logits, route::parse_router(text), group);
        }
      }
    }
  }
}

// Outputs of a routing and the gradient with respect to the logits, on the host.
struct Weighed {
  at::Tensor combine, weights, gradient;
  std::vector<at::Tensor> losses;
};

// `upstream` [rows_max] is the gradient of the weights; each loss has another factor.
inline Weighed weighed(const route::Routing& routing, const at::Tensor& logits,
                       const at::Tensor& upstream) {
  Weighed result{routing.combine.detach().cpu(), routing.weights.detach().cpu(), {}, {}};
  at::Tensor sum = (routing.weights * upstream.to(logits.device())).sum();
  for (const auto member : route::kAllLosses) {
    if (const at::Tensor& loss = routing.losses.*member; loss.defined()) {
      result.losses.push_back(loss.detach().cpu());
      sum = sum + 0.3 * static_cast<double>(result.losses.size()) * loss;
    }
  }
  result.gradient = torch::autograd::grad({sum}, {logits})[0].cpu();
  return result;
}

inline void check_close(const Weighed& actual, const Weighed& expected) {
  CHECK(at::allclose(actual.combine, expected.combine, 1e-5, 1e-6));
  CHECK(at::allclose(actual.weights, expected.weights, 1e-5, 1e-6));
  CHECK(at::allclose(actual.gradient, expected.gradient, 1e-5, 1e-6));
  REQUIRE(actual.losses.size() == expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(at::allclose(actual.losses[i], expected.losses[i], 1e-5, 1e-6));
  }
}

inline void check_counters(const route::Counters& actual, const route::Counters& expected) {
  std::vector<double> found = route::pack_counters(route::read_counters({actual})[0]);
  std::vector<double> wanted = route::pack_counters(route::read_counters({expected})[0]);
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {  // all but the entropy are integers
    CAPTURE(i);
    CHECK(found[i] == Approx(wanted[i]).epsilon(1e-6).margin(1e-6));
  }
}

}  // namespace moe::test
