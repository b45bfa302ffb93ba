#pragma once
// Comparison of the fused kernels of top-k routers with the rules, gates, losses and counters in
// LibTorch operations.

#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "core/route/plan.h"
#include "core/route/route.h"
#include "tests/support/catch.h"

namespace moe::test {

// Computes gates and losses for the plan of `routed` without fused kernels.
inline route::Routing weigh_by_rules(const at::Tensor& logits, const route::Routing& routed,
                                     const route::RouterSettings& settings) {
  const route::RouterFunctions& functions = route::router_functions(settings);
  route::Routing routing = routed;
  routing.combine = functions.gates(logits, routing.count, settings);
  routing.weights = route::row_weights(routing.combine, routing.count, routing.input, routing.plan);
  routing.losses = functions.losses(logits, routing.input, routing.count, settings);
  if (routing.input.compute_z_loss) {
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

inline void check_equal(const route::Plan& actual, const route::Plan& expected) {
  using route::Plan;
  for (const auto member : std::initializer_list<at::Tensor Plan::*>{
           &Plan::token, &Plan::expert, &Plan::choice, &Plan::count, &Plan::rows,
           &Plan::overflow_token, &Plan::overflow_expert, &Plan::overflow_choice}) {
    CHECK(at::equal((actual.*member).cpu(), expected.*member));
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

inline constexpr const char* kPlannedRouters[] = {"top1",
                                                  "top1+ir",
                                                  "top1+ir+fr",
                                                  "top2+ir+fr:cf=0.7",
                                                  "top2+ir+fr:order=score",
                                                  "top3:order=score",
                                                  "top2:cf=inf",
                                                  "top2+fr:cf=inf",
                                                  "top4+ir+fr:cf=2",
                                                  "top2+ir:st=off",
                                                  "top2+ir+fr:gate=none",
                                                  "top3+ir:lb=selected,cf=0.5",
                                                  "top1:bias=0.1",
                                                  "top2+ir+fr:cf=0.7,bias=0.1",
                                                  "top3:cf=inf,bias=0"};

struct PlannedShape {
  int64_t tokens, ranks;
  bool ties;
};

// Compares plans, counters, gates, losses and gradients on `device` with those of the rules, for
// each router and shape, with padding. Tokens with permuted logits have scores that differ by the
// rounding of a softmax, which depends on the device: the rules use the scores of a GPU.
inline void check_planned_routers(at::Device device, const std::vector<PlannedShape>& shapes) {
  at::manual_seed(1);
  for (const auto* text : kPlannedRouters) {
    for (const auto& [tokens, ranks, ties] : shapes) {
      CAPTURE(text, tokens, ranks, ties);
      const route::RouterSettings settings = route::parse_router(text);
      at::Tensor drawn = at::randn({tokens, 4}) * 2;
      drawn = ties ? drawn.round() : drawn;
      const at::Tensor bias = settings.bias_rate ? at::randn({4}) * 0.3 : at::Tensor();
      route::RoutingGroup group = route::partition_tokens(tokens, ranks);
      if (tokens > 5) {
        group.source_rank[2] = group.source_rank[5] = -1;
      }
      group.compute_z_loss = ranks != 2;
      if (ranks == 2) {
        group.sequence = std::vector<int64_t>(group.source_rank.size(), 1);
      }
      const auto leaf = [](const at::Tensor& values, at::Device on) {
        return values.detach().to(on).clone().requires_grad_(true);
      };
      const at::Tensor logits = leaf(drawn, at::kCPU), own = leaf(drawn, device);
      const route::Routing actual =
          route::route(own, settings, group, bias.defined() ? bias.to(device) : bias);
      const at::Tensor scores = actual.input.scores.detach().cpu();
      CHECK(at::allclose(scores, route::router_functions(settings).scores(drawn), 1e-6, 1e-7));
      const route::Routing expected =
          route_by_rules(logits, settings, group, bias, device.is_cpu() ? at::Tensor() : scores);
      check_equal(actual.plan, expected.plan);
      CHECK(at::equal(actual.count.cpu(), expected.count));
      check_counters(actual.counters, expected.counters);
      const at::Tensor upstream = at::randn({expected.plan.token.size(0)});
      check_close(weighed(actual, own, upstream), weighed(expected, logits, upstream));

      const at::Tensor again = leaf(drawn * 0.9, at::kCPU), own_again = leaf(again, device);
      check_close(weighed(route::recompute_gates(own_again, actual, settings), own_again, upstream),
                  weighed(weigh_by_rules(again, expected, settings), again, upstream));
    }
  }
}

}  // namespace moe::test
