// Combine weights and their gradients against finite differences and autograd of a dense
// formulation, both in f64.

#include "core/route/route.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

struct Case {
  at::Tensor logits, count, upstream;  // [T, E] f64
};

// Returns random logits with multiplicities of plans (0, 1, m, 1 + m); the first token has no
// expert.
Case random_case(int seed, int64_t tokens, int64_t experts) {
  std::mt19937 random(seed);
  std::vector<double> logits, count, upstream;
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    logits.push_back(normal(random) * 2);
    count.push_back(i < experts || random() % 2 == 0 ? 0.0 : static_cast<double>(1 + random() % 3));
    upstream.push_back(normal(random));
  }
  const auto shaped = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).view({tokens, experts});
  };
  return {shaped(logits), shaped(count), shaped(upstream)};
}

}  // namespace

TEST_CASE("normalised weights have the gradient of finite differences", "[route]") {
  const Case c = random_case(1, 9, 5);
  const auto loss = [&](const at::Tensor& a) {
    return (route::softmax_gates(a, c.count, true, false) * c.upstream).sum();
  };
  CHECK(distance(autograd(loss, c.logits), finite_difference(loss, c.logits)) < kGradTolerance);
}

TEST_CASE("plain probabilities have the gradient of finite differences", "[route]") {
  const Case c = random_case(2, 9, 5);
  for (const bool straight_through : {false, true}) {
    const auto loss = [&](const at::Tensor& a) {
      return (route::softmax_gates(a, c.count, false, straight_through) * c.upstream).sum();
    };
    CHECK(distance(autograd(loss, c.logits), finite_difference(loss, c.logits)) < kGradTolerance);
  }
}

TEST_CASE("straight-through freezes the normaliser and nothing else", "[route]") {
  const Case c = random_case(3, 9, 5);
  const auto mass = [&](const at::Tensor& a) { return at::softmax(a, 1) * c.count; };
  const at::Tensor sums = mass(c.logits).sum(1, true);
  const at::Tensor frozen = sums.masked_fill(sums == 0, 1);
  const auto dense = [&](const at::Tensor& a) { return (mass(a) / frozen * c.upstream).sum(); };
  const auto gates = [&](const at::Tensor& a) {
    return (route::softmax_gates(a, c.count, true, true) * c.upstream).sum();
  };
  CHECK(distance(gates(c.logits), dense(c.logits)) < 1e-14);
  CHECK(distance(autograd(gates, c.logits), autograd(dense, c.logits)) < 1e-13);
  CHECK(distance(autograd(gates, c.logits), finite_difference(dense, c.logits)) < kGradTolerance);
}

TEST_CASE("without straight-through a lone expert teaches its router nothing", "[route]") {
  const auto logits = at::tensor({2.0, 1.0, 0.0, -1.0}, at::kDouble).view({1, 4});
  const auto count = at::tensor({1.0, 0.0, 0.0, 0.0}, at::kDouble).view({1, 4});
  const auto gradient = [&](bool straight_through) {
    return autograd(
        [&](const at::Tensor& a) {
          return (route::softmax_gates(a, count, true, straight_through) * 0.345703).sum();
        },
        logits);
  };
  CHECK(gradient(false).abs().max().item<double>() == 0);
  // Token 0 of the worked example with top1.
  const auto printed =
      at::tensor({.123100, -.081891, -.030126, -.011083}, at::kDouble).view({1, 4});
  CHECK((gradient(true) - printed).abs().max().item<double>() < 1e-6);
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

TEST_CASE("relu gates learn where they are positive", "[route]") {
  const Case c = random_case(4, 6, 5);
  const at::Tensor count = (c.logits > 0).to(at::kDouble);
  const auto loss = [&](const at::Tensor& a) {
    return (route::relu_gates(a, count) * c.upstream).sum();
  };
  CHECK(at::equal(autograd(loss, c.logits), c.upstream * count));
}

TEST_CASE("a row that stands twice shares its weight by multiplicity", "[route]") {
  // One rank, one slot per expert: t1 gets e0 and t0 gets e1, and IR routes both to e0, t1 for the
  // second time.
  const auto logits = at::tensor({1.0, 0.0, 2.0, 0.0}, at::kFloat).view({2, 2});
  const auto group = route::spread_over_ranks(2, 1);
  const auto routing = route::route(logits, route::parse_router("top2+ir:cf=1"), group);
  CHECK(words_of(used_rows(routing.plan, group, 2), 2) == "e0:t1 e0:t0+ir1 e0:t1+ir1 e1:t0");
  const float e = std::exp(1.0F);
  const auto want = at::tensor({0.5F, e / (1 + e), 0.5F, 1 / (1 + e)});
  CHECK(routing.weights.narrow(0, 0, 4).allclose(want));
}

TEST_CASE("gradients of the row weights reach the logits through every row", "[route]") {
  std::mt19937 random(5);
  for (const char* router :
       {"top2+ir+fr:cf=0.75,st=off", "top3+ir:cf=0.5,st=off", "topp:0.6", "relu:k=1"}) {
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

}  // namespace moe::test
