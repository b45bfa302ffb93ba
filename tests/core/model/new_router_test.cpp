// A router that only tests know: one rule, one entry. It goes through route(), keeps the promises
// of every router in the table, and trains in the layer that models are made of.

#include "core/model/moe/layer.h"
#include "core/route/gates.h"
#include "core/route/rows.h"
#include "tests/core/route/promises.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

// Token t goes to expert t mod E, whatever its scores are.
route::Plan in_turn(const route::RouteInput& input, const route::Plan&) {
  const at::Tensor turn = (at::arange(input.tokens()) % input.experts()).unsqueeze(1);
  const auto asking = route::requests(input, turn, at::ones({input.tokens(), 1}, at::kBool), 0);
  return route::with_rows(input, route::sort_by_group(input, asking), asking.token.size(0),
                          route::Plan());
}

constexpr auto kInTurn = static_cast<route::Family>(100);

const route::RouterFamily& in_turn_family() {
  static const route::RouterFamily family = {
      kInTurn,
      {},
      [](const at::Tensor& logits) { return at::softmax(logits, 1); },
      [](const route::RouterSettings&) { return std::vector<route::Rule>{in_turn}; },
      [](const at::Tensor& logits, const at::Tensor& count, const route::RouterSettings&) {
        return route::softmax_gates(logits, count, /*normalise=*/false, /*straight_through=*/true);
      },
      [](const at::Tensor& logits, const route::RouteInput& input, const at::Tensor& count,
         const route::RouterSettings& settings) {
        return route::AuxLosses{route::load_balance_loss(logits, input, count, settings), {}, {}};
      }};
  return family;
}

route::RouterSettings in_turn_settings() {
  route::RouterSettings settings;
  settings.family = kInTurn;
  return settings;
}

route::Routing route_in_turn(const at::Tensor& logits, const route::RouterSettings& settings,
                             const route::RoutingGroup& group) {
  return route::route(logits, in_turn_family(), settings, group);
}

}  // namespace

TEST_CASE("a router of one rule keeps the promises of all routers", "[model]") {
  std::mt19937 random(6);
  for (const auto& [tokens, experts, ranks] :
       {std::tuple{1, 1, 1}, {1, 8, 4}, {3, 8, 2}, {40, 4, 4}, {64, 8, 2}}) {
    const auto input = random_routing(random, tokens, experts, ranks, 0, 0.2);
    check_promises(input.logits, in_turn_settings(), input.group, route_in_turn);
  }
}

TEST_CASE("a router of one rule computes and learns in a whole layer", "[model]") {
  at::manual_seed(43);
  const int64_t tokens = 10, experts = 4, width = 6, inner = 5;
  const auto options = at::TensorOptions(at::kDouble);
  const auto x = at::randn({tokens, width}, options);
  const model::MoeWeights weights = {at::randn({experts, width}, options),
                                     at::randn({experts, 2 * inner, width}, options) * 0.5,
                                     at::randn({experts, width, inner}, options) * 0.5};
  const auto dy = at::randn({tokens, width}, options);
  const auto group = route::spread_over_ranks(tokens, 2);
  const auto output = [&](const at::Tensor& router) {
    const auto routing = route_in_turn(model::router_logits(x, router), in_turn_settings(), group);
    return model::run_experts(x, {router, weights.gate_up, weights.down}, routing, 1.0);
  };
  // Token 5 has expert 1, weighed by its probability.
  const auto hidden = at::mv(weights.gate_up[1], x[5]);
  const auto expert = at::mv(weights.down[1],
                             at::silu(hidden.narrow(0, 0, inner)) * hidden.narrow(0, inner, inner));
  const auto probability = at::softmax(at::mv(weights.router, x[5]), 0)[1];
  CHECK(distance(output(weights.router)[5], probability * expert) < 1e-12);

  const auto loss = [&](const at::Tensor& router) { return (output(router) * dy).sum(); };
  CHECK(distance(autograd(loss, weights.router), finite_difference(loss, weights.router)) <
        kGradTolerance);
}

}  // namespace moe::test
