// Auxiliary losses against plain sums, finite differences and known values.

#include <functional>
#include <set>

#include "core/route/route.h"
#include "tests/core/route/kernel_plan.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

using route::parse_router;
using route::Routing;

// Returns the mean over groups with tokens of `loss` of the logits and counts [n, E] of a group.
double mean_over_groups(const at::Tensor& logits, const at::Tensor& counted,
                        const std::vector<int64_t>& group_of,
                        const std::function<at::Tensor(at::Tensor, at::Tensor)>& loss) {
  double sum = 0, groups = 0;
  for (const int64_t group : std::set<int64_t>(group_of.begin(), group_of.end())) {
    const at::Tensor rows = at::nonzero(at::tensor(group_of) == group).view({-1});
    if (group >= 0) {
      sum += loss(logits.index_select(0, rows), counted.index_select(0, rows)).item<double>();
      ++groups;
    }
  }
  return groups == 0 ? 0 : sum / groups;
}

// Returns 1 for the `k` best experts of a token, or for those with a top-p weight, [T, E].
at::Tensor selected_experts(const at::Tensor& logits, const route::RouterSettings& settings,
                            const route::Routing& routing, int64_t k) {
  if (settings.family->name == "topp") {
    return (routing.combine > 0).to(at::kDouble);
  }
  return at::zeros_like(logits).scatter(1, std::get<1>(logits.topk(k, 1)), 1);
}

// Returns sequences of uneven lengths, some with one token.
std::vector<int64_t> random_sequences(std::mt19937& random, int64_t tokens) {
  std::vector<int64_t> sequence;
  for (int64_t number = 0; static_cast<int64_t>(sequence.size()) < tokens; ++number) {
    sequence.insert(sequence.end(), 1 + random() % 12, number);
  }
  sequence.resize(tokens);
  return sequence;
}

void check_same_bits(const Routing& a, const Routing& b) {
  check_equal(a.plan, b.plan);
  CHECK(at::equal(a.combine, b.combine));
  CHECK(at::equal(a.weights, b.weights));
  CHECK(at::equal(a.losses.load_balance, b.losses.load_balance));
}

TEST_CASE("balance and z-losses equal plain sums over ranks and sequences, padded ones too") {
  std::mt19937 random(31);
  for (int round = 0; round < 30; ++round) {
    auto input = random_routing(random, 40, 8, 4, 0, round % 2 == 0 ? 0.3 : 0);
    input.group.compute_z_loss = true;
    input.group.sequence = random_sequences(random, 40);
    std::vector<int64_t> sequence = *input.group.sequence;
    for (size_t token = 0; token < sequence.size(); ++token) {
      sequence[token] = input.group.source_rank[token] < 0 ? -1 : sequence[token];
    }
    const at::Tensor logits = input.logits.to(at::kDouble);
    for (const char* router :
         {"top1", "top2+ir+fr:cf=0.5", "top3:lb=selected", "topp:0.5", "expert-choice"}) {
      INFO(router << " round " << round);
      const auto settings = route::parse_router(router);
      const auto routing = route::route(input.logits, settings, input.group);
      const auto check = [&](const at::Tensor& loss, int64_t k,
                             const std::vector<int64_t>& group_of,
                             const std::function<at::Tensor(at::Tensor, at::Tensor)>& expected) {
        // About T E = 320 terms: the sum of rounding errors stays below 320 eps.
        const at::Tensor counted = selected_experts(logits, settings, routing, k);
        CHECK(loss.item<double>() ==
              Approx(mean_over_groups(logits, counted, group_of, expected)).epsilon(4e-5));
      };
      check(routing.losses.z, 1, input.group.source_rank,
            [](const auto& a, const auto& /*counted*/) {
              return at::logsumexp(a, 1).square().mean();
            });
      if (settings.family->load_balance_coef) {
        const bool is_first = settings.lb_count == route::LbCount::kFirst;
        check(routing.losses.load_balance, is_first ? 1 : settings.k, input.group.source_rank,
              [](const auto& a, const auto& counted) {
                return 8 * (counted.mean(0) * a.softmax(1).mean(0)).sum();
              });
        check(routing.losses.sequence_balance, settings.k, sequence,
              [](const auto& a, const auto& counted) {
                return 8 * (counted.sum(0) / counted.sum() * a.softmax(1).mean(0)).sum();
              });
      }
    }
  }
}

TEST_CASE("auxiliary losses have the gradient of finite differences") {
  std::mt19937 random(22);
  auto input = random_routing(random, 12, 4, 2, 0, 0.2);
  input.group.compute_z_loss = true;
  input.group.sequence = random_sequences(random, 12);
  const at::Tensor logits = input.logits.to(at::kDouble);
  const auto check = [&](const char* router, at::Tensor route::AuxLosses::*which) {
    INFO(router);
    const auto settings = route::parse_router(router);
    const auto loss = [&](const at::Tensor& a) {
      return route::route(a, settings, input.group).losses.*which;
    };
    const auto gradient = autograd(loss, logits);
    CHECK(distance(gradient, finite_difference(loss, logits)) < kGradTolerance);
    CHECK(gradient.abs().max().item<double>() > 1e-3);
    for (int64_t token = 0; token < 12; ++token) {
      if (input.group.source_rank[token] < 0) {
        CHECK(gradient[token].abs().max().item<double>() == 0);
      }
    }
  };
  check("top1", &route::AuxLosses::load_balance);
  check("top2:lb=selected", &route::AuxLosses::load_balance);
  check("topp:0.4", &route::AuxLosses::load_balance);
  check("topp:0.4", &route::AuxLosses::entropy);
  check("relu:k=1", &route::AuxLosses::l1);
  check("relu:k=1,l1=plain", &route::AuxLosses::l1);
  for (const char* router : {"top1", "top2+ir+fr:cf=1", "topp:0.4", "expert-choice"}) {
    check(router, &route::AuxLosses::z);
  }
  for (const char* router : {"top1", "top2+ir+fr:cf=1", "topp:0.4"}) {
    check(router, &route::AuxLosses::sequence_balance);
  }
}

TEST_CASE("z-loss and sequence balance are computed on request, if the router has them") {
  auto asked = route::partition_tokens(4, 1);
  asked.compute_z_loss = true;
  asked.sequence = std::vector<int64_t>{0, 0, 1, 1};
  for (const char* router : {"top2", "topp:0.4", "relu:k=1", "expert-choice"}) {
    INFO(router);
    const auto settings = route::parse_router(router);
    const auto silent =
        route::route(at::zeros({4, 4}), settings, route::partition_tokens(4, 1)).losses;
    CHECK_FALSE(silent.z.defined());
    CHECK_FALSE(silent.sequence_balance.defined());
    const auto losses = route::route(at::zeros({4, 4}), settings, asked).losses;
    CHECK(losses.z.defined() == settings.family->has_softmax_scores);
    CHECK(losses.sequence_balance.defined() == settings.family->load_balance_coef.has_value());
  }
}

TEST_CASE("losses of layers add up, absent ones stay absent") {
  route::AuxLosses sum, one;
  one.load_balance = at::tensor(1.5, at::kFloat);
  sum += one;
  sum += one;
  CHECK(sum.load_balance.item<double>() == 3);
  CHECK_FALSE(sum.entropy.defined());
}

TEST_CASE("lambda rises while too dense and falls otherwise, equality lowers, within its range") {
  CHECK(route::next_lambda(0.5, 0.5, 0.75, 1.2) == 0.6);
  CHECK(route::next_lambda(0.6, 0.75, 0.75, 1.2) == 0.5);
  CHECK(route::next_lambda(0.6, 0.9, 0.75, 1.2) == 0.5);
  CHECK(route::next_lambda(0.9, 0.5, 0.75, 1.2) == 1);
  CHECK(route::next_lambda(1.1e-10, 0.9, 0.75, 1.2) == 1e-10);
  CHECK(route::next_lambda(5, 0.5, 0.75, 1.25) == 5);  // from outside: towards the range only
  CHECK(route::next_lambda(5, 0.9, 0.75, 1.25) == 4);
  CHECK(route::next_lambda(1e-12, 0.9, 0.75, 1.2) == 1e-12);
  CHECK(route::next_lambda(0, 0.5, 0.75, 1.2) == 0);
}

// Combine weights against a dense formulation in f64, and balance by bias. routers_test.cpp
// compares weights and choices under a bias with the reference.

TEST_CASE("straight-through freezes the normaliser and nothing else") {
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

TEST_CASE("saturated logits give finite weights and gradients") {
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

TEST_CASE("a row that occurs twice shares its weight by multiplicity") {
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

TEST_CASE("gradients of the row weights reach the logits through every row") {
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

TEST_CASE("a uniform bias changes no bit of the routing") {
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

TEST_CASE("balance losses count the choices by score, for any bias") {
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

TEST_CASE("weights under a bias have the gradient of finite differences") {
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

TEST_CASE("a bias moves by its rate against the load, and stays where the load is the mean") {
  at::Tensor bias = at::zeros({4});
  route::update_bias(bias, {5, 1, 3, 3}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.25, 0.25, 0.0, 0.0}, at::kFloat)));
  route::update_bias(bias, {1, 0, 0, 0}, 0.25);
  route::update_bias(bias, {0, 0, 0, 0}, 0.25);  // no tokens: unchanged
  route::update_bias(bias, {7, 7, 7, 7}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.5, 0.5, 0.25, 0.25}, at::kFloat)));
}

}  // namespace
}  // namespace moe::test
