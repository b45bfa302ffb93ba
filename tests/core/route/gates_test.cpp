// Combine weights and their gradients against finite differences and autograd of a dense
// formulation, both in f64; and balance by bias: its effect on losses and gradients, and its update
// rule. routers_test.cpp compares weights and the choices under a bias with the reference.

#include "core/route/route.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

using route::parse_router;
using route::Routing;

void check_same_bits(const Routing& a, const Routing& b) {
  for (const auto member : std::initializer_list<at::Tensor route::Plan::*>{
           &route::Plan::token, &route::Plan::expert, &route::Plan::choice, &route::Plan::count,
           &route::Plan::rows, &route::Plan::overflow_token, &route::Plan::overflow_expert,
           &route::Plan::overflow_choice}) {
    CHECK(at::equal(a.plan.*member, b.plan.*member));
  }
  CHECK(at::equal(a.combine, b.combine));
  CHECK(at::equal(a.weights, b.weights));
  CHECK(at::equal(a.losses.load_balance, b.losses.load_balance));
}

}  // namespace

TEST_CASE("straight-through freezes the normaliser and nothing else", "[route]") {
  at::manual_seed(3);
  const auto random = [] { return at::randn({9, 5}, at::kDouble); };
  const at::Tensor logits = random() * 2, upstream = random();
  const at::Tensor count = at::randint(0, 4, {9, 5}, at::kDouble);  // as of plans
  count[0].zero_();                                                 // no expert
  const auto mass = [&](const at::Tensor& a) { return at::softmax(a, 1) * count; };
  const at::Tensor sums = mass(logits).sum(1, true);
  const at::Tensor frozen = sums.masked_fill(sums == 0, 1);
  const auto dense = [&](const at::Tensor& a) { return (mass(a) / frozen * upstream).sum(); };
  const auto gates = [&](const at::Tensor& a) {
    return (route::softmax_gates(a, count, true, true) * upstream).sum();
  };
  CHECK(distance(gates(logits), dense(logits)) < 1e-14);
  CHECK(distance(autograd(gates, logits), autograd(dense, logits)) < 1e-13);
  CHECK(distance(autograd(gates, logits), finite_difference(dense, logits)) < kGradTolerance);
}

TEST_CASE("saturated logits give finite weights and gradients", "[route]") {
  const auto logits =
      at::tensor({200.0, -200.0, -210.0, 200.0, 0.0, 199.0}, at::kFloat).view({2, 3});
  const auto count = at::tensor({0.0, 1.0, 1.0, 0.0, 1.0, 0.0}, at::kFloat).view({2, 3});
  for (const bool straight_through : {false, true}) {
    const auto at = logits.clone().requires_grad_(true);
    const auto weights = route::softmax_gates(at, count, true, straight_through);
    CHECK(weights[0][1].item<double>() == Approx(1 / (1 + std::exp(-10.0))));
    CHECK(weights[1][1].item<double>() == 1);
    weights.square().sum().backward();
    CHECK(at::isfinite(at.grad()).all().item<bool>());
  }
}

TEST_CASE("a row that stands twice shares its weight by multiplicity", "[route]") {
  // One rank, one slot per expert: t1 gets e0 and t0 gets e1, and IR routes both to e0, t1 for the
  // second time.
  const auto logits = at::tensor({1.0, 0.0, 2.0, 0.0}, at::kFloat).view({2, 2});
  const auto group = route::partition_tokens(2, 1);
  const auto routing = route::route(logits, route::parse_router("top2+ir:cf=1"), group);
  CHECK(words_of(used_rows(routing.plan, group, 2), 2) == "e0:t1 e0:t0+ir1 e0:t1+ir1 e1:t0");
  const float e = std::exp(1.0F);
  const auto want = at::tensor({0.5F, e / (1 + e), 0.5F, 1 / (1 + e)});
  CHECK(routing.weights.narrow(0, 0, 4).allclose(want));
}

TEST_CASE("gradients of the row weights reach the logits through every row", "[route]") {
  std::mt19937 random(5);
  for (const char* router : {"top2+ir+fr:cf=0.75,st=off", "top3+ir:cf=0.5,st=off", "top2:gate=none",
                             "topp:0.6", "relu:k=1"}) {
    INFO(router);
    const auto input = random_routing(random, 12, 4, 2);
    const auto settings = route::parse_router(router);
    const at::Tensor logits = input.logits.to(at::kDouble);
    const auto plan = route::route(logits, settings, input.group).plan;
    const auto upstream = at::cos(at::arange(plan.token.size(0), at::kDouble));
    const auto loss = [&](const at::Tensor& a) {
      return (route::route(a, settings, input.group).weights * upstream).sum();
    };
    CHECK(distance(autograd(loss, logits), finite_difference(loss, logits)) < kGradTolerance);
  }
}

TEST_CASE("a bias of zeros, or the same for all, routes as none does, bit for bit", "[route]") {
  std::mt19937 random(42);
  for (int round = 0; round < 30; ++round) {
    const auto input = random_routing(random, 33, 8, 2, round % 2 == 0 ? 0.5 : 0, 0.1);
    // Logits * 100: some probabilities underflow.
    const at::Tensor logits = round % 3 == 0 ? input.logits * 100 : input.logits;
    for (const char* router : {"top1", "top2+ir+fr:cf=0.5", "top3:order=score", "top2:cf=inf"}) {
      INFO(router << " round " << round);
      auto settings = parse_router(router);
      const Routing plain = route::route(logits, settings, input.group);
      CHECK(route::read_counters({plain.counters})[0].requests_per_expert.empty());
      settings.bias_rate = 0.001;
      check_same_bits(route::route(logits, settings, input.group), plain);
      check_same_bits(route::route(logits, settings, input.group, at::zeros({8})), plain);
      check_same_bits(route::route(logits, settings, input.group, at::full({8}, 0.25)), plain);
    }
  }
}

TEST_CASE("balance losses count the choices by score, for any bias", "[route]") {
  std::mt19937 random(44);
  auto input = random_routing(random, 32, 8, 2);
  input.group.sequence = std::vector<int64_t>(32, 0);
  const at::Tensor bias = at::randn({8});
  for (const char* router : {"top2:bias=0.1", "top2:bias=0.1,lb=selected"}) {
    auto settings = parse_router(router);
    const auto with = route::route(input.logits, settings, input.group, bias).losses;
    settings.bias_rate.reset();
    const auto without = route::route(input.logits, settings, input.group).losses;
    CHECK(at::equal(with.load_balance, without.load_balance));
    CHECK(at::equal(with.sequence_balance, without.sequence_balance));
  }
}

TEST_CASE("weights under a bias have the gradient of finite differences", "[route]") {
  std::mt19937 random(46);
  const auto input = random_routing(random, 12, 4, 2, 0, 0.2);
  const at::Tensor bias = at::tensor({0.3, -0.2, 0.1, 0.0}, at::kFloat);
  const at::Tensor upstream = at::randn({12, 4}, at::kDouble);
  for (const char* router :
       {"top2:st=off,bias=0.1", "top1+ir+fr:st=off,bias=0.1", "top2:gate=none,bias=0.1"}) {
    INFO(router);
    const auto settings = parse_router(router);
    const auto loss = [&](const at::Tensor& a) {
      return (route::route(a, settings, input.group, bias).combine * upstream).sum();
    };
    const at::Tensor logits = input.logits.to(at::kDouble);
    CHECK(distance(autograd(loss, logits), finite_difference(loss, logits)) < kGradTolerance);
  }
}

TEST_CASE("a bias moves by its rate against the load, and stays where the load is the mean",
          "[route]") {
  at::Tensor bias = at::zeros({4});
  route::update_bias(bias, {5, 1, 3, 3}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.25, 0.25, 0.0, 0.0}, at::kFloat)));
  route::update_bias(bias, {1, 0, 0, 0}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.5, 0.5, 0.25, 0.25}, at::kFloat)));
  route::update_bias(bias, {0, 0, 0, 0}, 0.25);  // no tokens: unchanged
  route::update_bias(bias, {7, 7, 7, 7}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.5, 0.5, 0.25, 0.25}, at::kFloat)));
}

}  // namespace moe::test
