// Balance by bias: its effect on choices, weights, counters and losses against the reference, and
// its update rule.

#include "core/route/route.h"
#include "tests/core/route/promises.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"
#include "tests/support/user_error.h"

namespace moe::test {
namespace {

using route::parse_router;
using route::Routing;

std::vector<double> doubles_of(const at::Tensor& bias) {
  return matrix_of(bias.unsqueeze(0)).front();
}

void check_same_bits(const Routing& a, const Routing& b) {
  for (const auto member : {&route::Plan::token, &route::Plan::expert, &route::Plan::choice,
                            &route::Plan::count, &route::Plan::rows, &route::Plan::overflow_token,
                            &route::Plan::overflow_expert, &route::Plan::overflow_choice}) {
    CHECK(at::equal(a.plan.*member, b.plan.*member));
  }
  CHECK(at::equal(a.combine, b.combine));
  CHECK(at::equal(a.weights, b.weights));
  CHECK(at::equal(a.losses.load_balance, b.losses.load_balance));
}

// Returns logits whose softmax is `probabilities`.
at::Tensor logits_of(const std::vector<double>& probabilities, int64_t experts) {
  return at::tensor(probabilities, at::kFloat).log().view({-1, experts});
}

// Returns the experts of a token in the order of the plan's rows: "0 2".
std::string experts_of(const Routing& routing, int64_t token) {
  std::string words;
  for (const auto& row : used_rows(
           routing.plan, route::spread_over_ranks(routing.input.tokens(), routing.input.ranks),
           routing.input.experts())) {
    if (row.token == token) {
      words += (words.empty() ? "" : " ") + std::to_string(row.expert);
    }
  }
  return words;
}

}  // namespace

TEST_CASE("a bias of the choice routes as plain loops do, with ties, padding and uneven ranks",
          "[route]") {
  std::mt19937 random(41);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 150; ++round) {
    const int64_t experts = 8, ranks = 1 << random() % 3;
    const auto input = random_routing(random, static_cast<int64_t>(random() % 40), experts, ranks,
                                      round % 3 == 0 ? 0.5 : 0, round % 2 == 0 ? 0.2 : 0);
    auto settings = parse_router("top1:bias=0.001");
    settings.k = 1 + static_cast<int64_t>(random() % 4);
    settings.fr = random() % 2 == 0;
    settings.ir = random() % 2 == 0;
    settings.slot_order = random() % 3 == 0 ? route::SlotOrder::kScore : route::SlotOrder::kChoice;
    settings.gate_norm = random() % 3 == 0 ? route::GateNorm::kNone : route::GateNorm::kSelected;
    settings.capacity_factor = random() % 4 == 0 ? std::nullopt : std::optional(0.5 + random() % 3);
    std::vector<float> numbers;
    for (int64_t expert = 0; expert < experts; ++expert) {
      numbers.push_back(static_cast<float>(normal(random) * 0.3));
    }
    const at::Tensor bias = at::tensor(numbers, at::kFloat);
    INFO(to_string(settings) << " round " << round);
    const Routing routing = route::route(input.logits, settings, input.group, bias);
    const auto reference = reference_route(matrix_of(input.logits), matrix_of(routing.input.scores),
                                           settings, input.group, doubles_of(bias));
    CHECK(words_of(used_rows(routing.plan, input.group, experts), settings.k) ==
          words_of(reference.rows, settings.k));
    CHECK((refused_rows(routing.plan, input.group, experts) == reference.refused));
    const Matrix weights = matrix_of(routing.combine);
    for (size_t token = 0; token < weights.size(); ++token) {
      for (int64_t expert = 0; expert < experts; ++expert) {
        CHECK(std::abs(weights[token][expert] - reference.weights[token][expert]) < 1e-5);
      }
    }
    // Requests of each expert before capacity, without padding.
    const auto counted = route::read_counters({routing.counters})[0];
    std::vector<int64_t> requests(experts, 0);
    for (const auto* rows : {&reference.rows, &reference.refused}) {
      for (const auto& row : *rows) {
        requests[row.expert] += row.choice < settings.k ? 1 : 0;
      }
    }
    CHECK(counted.requests_per_expert == requests);
  }
}

TEST_CASE("a bias of zeros, or the same for all, routes as none does, bit for bit", "[route]") {
  std::mt19937 random(42);
  for (int round = 0; round < 100; ++round) {
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

TEST_CASE("a router without a bias does not read one", "[route]") {
  std::mt19937 random(43);
  const auto input = random_routing(random, 32, 8, 2);
  const at::Tensor bias = at::arange(8, at::kFloat);
  for (const auto& settings : all_routers()) {
    if (settings.bias_rate || !fits(settings, 8)) {
      continue;
    }
    INFO(to_string(settings));
    const Routing with = route::route(input.logits, settings, input.group, bias);
    const Routing without = route::route(input.logits, settings, input.group);
    CHECK(at::equal(with.plan.token, without.plan.token));
    CHECK(at::equal(with.plan.expert, without.plan.expert));
    CHECK(at::equal(with.combine, without.combine));
  }
}

TEST_CASE("the bias chooses; weights, capacity and rectification go by the scores", "[route]") {
  const at::Tensor logits = logits_of({0.50, 0.30, 0.15, 0.05,   //
                                       0.40, 0.35, 0.15, 0.10},  //
                                      4);
  const at::Tensor bias = at::tensor({0.0, 0.0, 0.0, 0.36}, at::kFloat);
  const auto group = route::spread_over_ranks(2, 1);
  // g + bias of token 0: .50 .30 .15 .41, of token 1: .40 .35 .15 .46.
  const Routing two = route::route(logits, parse_router("top2:cf=inf,bias=0.1"), group, bias);
  CHECK(experts_of(two, 0) == "0 3");
  CHECK(experts_of(two, 1) == "0 3");
  CHECK(two.combine[0][0].item<double>() == Approx(0.50 / 0.55));  // not of .50 and .41
  CHECK(two.combine[1][3].item<double>() == Approx(0.10 / 0.50));

  // The fill-in is also chosen by g + bias: expert 3 of token 0, expert 0 of token 1.
  const Routing filled = route::route(logits, parse_router("top1+fr:cf=4,bias=0.1"), group, bias);
  CHECK(experts_of(filled, 0) == "0 3");
  CHECK(experts_of(filled, 1) == "0 3");

  // Both tokens request expert 3, which has one slot. Token 1 gets it by its score, .10 against
  // .05. Rectification routes token 0 to its best expert by logit, without bias.
  const at::Tensor strong = at::tensor({0.0, 0.0, 0.0, 2.0}, at::kFloat);
  const Routing full = route::route(logits, parse_router("top1+ir:cf=1,bias=0.1"), group, strong);
  CHECK(experts_of(full, 1) == "3");
  CHECK(experts_of(full, 0) == "0");
  const auto counted = route::read_counters({full.counters})[0];
  CHECK(counted.requests_per_expert == std::vector<int64_t>{0, 0, 0, 2});
  CHECK(counted.tokens_per_expert == std::vector<int64_t>{1, 0, 0, 1});
  CHECK(counted.dropped_requests == 1);
}

TEST_CASE("balance losses count the choices of the scores, whatever the bias", "[route]") {
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

TEST_CASE("entropy is of the scores, however large the bias", "[route]") {
  std::mt19937 random(45);
  const auto input = random_routing(random, 32, 8, 2);
  const auto entropy = [&](const char* router, const at::Tensor& bias) {
    const auto routing = route::route(input.logits, parse_router(router), input.group, bias);
    return route::read_counters({routing.counters})[0].entropy_sum;
  };
  CHECK(entropy("top2:bias=0.1", at::randn({8}) * 10) == entropy("top2", {}));
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

TEST_CASE("decisions that were made under a bias stay when it has moved since", "[route]") {
  std::mt19937 random(47);
  const auto input = random_routing(random, 32, 8, 2);
  const auto settings = parse_router("top2+ir+fr:bias=0.1");
  at::Tensor bias = at::randn({8});
  const Routing first = route::route(input.logits, settings, input.group, bias);
  bias.zero_();
  check_same_bits(route::recompute_gates(input.logits, first, settings), first);
}

TEST_CASE("a bias moves by its rate against the load, and stands where the load is the mean",
          "[route]") {
  at::Tensor bias = at::zeros({4});
  route::move_bias(bias, {5, 1, 3, 3}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.25, 0.25, 0.0, 0.0}, at::kFloat)));
  route::move_bias(bias, {1, 0, 0, 0}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.5, 0.5, 0.25, 0.25}, at::kFloat)));
  route::move_bias(bias, {0, 0, 0, 0}, 0.25);  // no tokens: unchanged
  route::move_bias(bias, {7, 7, 7, 7}, 0.25);
  CHECK(at::equal(bias, at::tensor({-0.5, 0.5, 0.25, 0.25}, at::kFloat)));
}

TEST_CASE("step by step the bias brings a skewed load to the mean", "[route]") {
  std::mt19937 random(48);
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (int token = 0; token < 256; ++token) {
    for (int expert = 0; expert < 8; ++expert) {
      numbers.push_back(normal(random) + (expert == 2 ? 2.0F : 0.0F));  // prefers expert 2
    }
  }
  const at::Tensor logits = at::tensor(numbers, at::kFloat).view({256, 8});
  for (const char* router : {"top1:cf=inf,bias=0.004", "top2+ir+fr:bias=0.004"}) {
    INFO(router);
    const auto settings = parse_router(router);
    at::Tensor bias = at::zeros({8});
    const auto worst = [&] {
      const auto routing = route::route(logits, settings, route::spread_over_ranks(256, 2), bias);
      const auto requests = route::read_counters({routing.counters})[0].requests_per_expert;
      route::move_bias(bias, requests, *settings.bias_rate);
      return static_cast<double>(*std::max_element(requests.begin(), requests.end())) /
             (256.0 * static_cast<double>(settings.k) / 8);
    };
    const double before = worst();
    for (int step = 0; step < 200; ++step) {
      worst();
    }
    CHECK(before > 2.5);
    CHECK(worst() < 1.3);
    CHECK(bias.argmin().item<int64_t>() == 2);
  }
}

}  // namespace moe::test
