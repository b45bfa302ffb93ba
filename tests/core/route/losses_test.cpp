// Auxiliary losses against loops over ranks, finite differences, and the values they are known by.

#include "core/route/losses.h"

#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

// The load-balance loss as loops; `counted` [T][E] says what f counts.
double load_balance_by_loops(const Matrix& logits, const Matrix& counted,
                             const route::RoutingGroup& group) {
  const size_t experts = logits.at(0).size();
  double sum = 0;
  int64_t ranks_with_tokens = 0;
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    std::vector<double> f(experts, 0), mean(experts, 0);
    double tokens = 0;
    for (size_t token = 0; token < logits.size(); ++token) {
      if (group.home[token] == rank) {
        const auto g = softmax(logits[token]);
        for (size_t expert = 0; expert < experts; ++expert) {
          f[expert] += counted[token][expert];
          mean[expert] += g[expert];
        }
        ++tokens;
      }
    }
    if (tokens > 0) {
      ++ranks_with_tokens;
      for (size_t expert = 0; expert < experts; ++expert) {
        sum += static_cast<double>(experts) * f[expert] / tokens * mean[expert] / tokens;
      }
    }
  }
  return ranks_with_tokens == 0 ? 0 : sum / static_cast<double>(ranks_with_tokens);
}

}  // namespace

TEST_CASE("load balance equals loops over ranks, uneven and padded ones too", "[route]") {
  std::mt19937 random(21);
  for (int round = 0; round < 50; ++round) {
    const auto input = random_routing(random, 40, 8, 4, 0, 0.3);
    for (const char* router : {"top2", "top2:lb=selected", "topp:0.5"}) {
      INFO(router << " round " << round);
      const auto settings = route::parse_router(router);
      const auto routing = route::route(input.logits, settings, input.group);
      Matrix counted(40, std::vector<double>(8, 0));
      for (int64_t token = 0; token < 40; ++token) {
        const auto order = ranked_experts(matrix_of(input.logits)[token]);
        if (settings.family->name == "topp") {
          for (int64_t expert = 0; expert < 8; ++expert) {
            counted[token][expert] = routing.combine[token][expert].item<double>() > 0 ? 1 : 0;
          }
        } else {
          counted[token][order[0]] = 1;
          counted[token][order[1]] = settings.lb_count == route::LbCount::kSelected ? 1 : 0;
        }
      }
      // About T E = 320 terms of size 1/T each: the sum of rounding errors stays below 320 eps.
      CHECK(routing.losses.load_balance.item<double>() ==
            Approx(load_balance_by_loops(matrix_of(input.logits), counted, input.group))
                .epsilon(4e-5));
    }
  }
}

TEST_CASE("a uniform router has load balance 1, or k when selected experts count", "[route]") {
  const auto logits = at::zeros({16, 8});
  const auto group = route::spread_over_ranks(16, 2);
  const auto loss = [&](const char* router) {
    return route::route(logits, route::parse_router(router), group)
        .losses.load_balance.item<double>();
  };
  CHECK(loss("top1") == Approx(1));
  CHECK(loss("top3") == Approx(1));
  CHECK(loss("top3:lb=selected") == Approx(3));
}

TEST_CASE("auxiliary losses have the gradient of finite differences", "[route]") {
  std::mt19937 random(22);
  const auto input = random_routing(random, 12, 4, 2, 0, 0.2);
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
      if (input.group.home[token] < 0) {
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
}

TEST_CASE("each family returns its own losses and no others", "[route]") {
  const auto losses_of = [](const char* router) {
    return route::route(at::zeros({4, 4}), route::parse_router(router),
                        route::spread_over_ranks(4, 1))
        .losses;
  };
  CHECK(losses_of("top1").load_balance.defined());
  CHECK_FALSE(losses_of("top1").entropy.defined());
  CHECK_FALSE(losses_of("top1").l1.defined());
  CHECK(losses_of("topp:0.4").entropy.item<double>() == Approx(std::log(4.0)));
  CHECK_FALSE(losses_of("relu:k=1").load_balance.defined());
  CHECK(losses_of("relu:k=1").l1.defined());
}

TEST_CASE("losses of layers add up, absent ones stay absent", "[route]") {
  route::AuxLosses sum;
  route::AuxLosses one;
  one.load_balance = at::tensor(1.5, at::kFloat);
  sum += one;
  sum += one;
  CHECK(sum.load_balance.item<double>() == 3);
  CHECK_FALSE(sum.entropy.defined());
}

TEST_CASE("lambda rises while too dense and falls otherwise, equality lowers", "[route]") {
  CHECK(route::next_lambda(1.0, 0.5, 0.75, 1.2) == 1.2);
  CHECK(route::next_lambda(1.2, 0.75, 0.75, 1.2) == 1.0);
  CHECK(route::next_lambda(1.2, 0.9, 0.75, 1.2) == 1.0);
}

TEST_CASE("load balance is at least 1 where fractions equal probabilities, not in general",
          "[route]") {
  // Saturated logits: probabilities are 0 and 1, so f = Q and E sum f^2 >= 1 by Cauchy-Schwarz.
  std::mt19937 random(8);
  const auto settings = route::parse_router("top1");
  for (int round = 0; round < 50; ++round) {
    const auto input = random_routing(random, 1 + round, 8, 1);
    const auto routing = route::route(input.logits * 1e6, settings, input.group);
    CHECK(routing.losses.load_balance.item<double>() >= 1 - 1e-5);
  }
  // Rows .51/.49 twice and 0/1 once: 2 (2/3 * .34 + 1/3 * .66).
  const auto logits =
      at::tensor({0.51, 0.49, 0.51, 0.49, 1e-30, 1.0}, at::kFloat).log().view({3, 2});
  const auto routing = route::route(logits, settings, route::spread_over_ranks(3, 1));
  CHECK(routing.losses.load_balance.item<double>() == Approx(2 * (2 * 0.34 + 0.66) / 3));
}

}  // namespace moe::test
