// Auxiliary losses against plain loops, finite differences and known values.

#include "core/route/route.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

// Reference load-balance loss; `counted` [T][E] is the counted part of f.
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

// Reference z-loss: the mean over ranks with tokens of the mean over their tokens.
double z_by_loops(const Matrix& logits, const route::RoutingGroup& group) {
  double sum = 0, ranks_with_tokens = 0;
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    double of_rank = 0, tokens = 0;
    for (size_t token = 0; token < logits.size(); ++token) {
      if (group.home[token] == rank) {
        double total = 0;
        for (const double logit : logits[token]) {
          total += std::exp(logit);
        }
        of_rank += std::log(total) * std::log(total);
        ++tokens;
      }
    }
    sum += tokens > 0 ? of_rank / tokens : 0;
    ranks_with_tokens += tokens > 0 ? 1 : 0;
  }
  return ranks_with_tokens == 0 ? 0 : sum / ranks_with_tokens;
}

// Reference balance loss within sequences.
double sequence_balance_by_loops(const Matrix& logits, const Matrix& counted,
                                 const route::RoutingGroup& group) {
  const std::vector<int64_t>& sequence = group.sequence.value();
  const size_t experts = logits.at(0).size();
  double sum = 0, sequences_with_tokens = 0;
  for (int64_t number = 0; number <= *std::max_element(sequence.begin(), sequence.end());
       ++number) {
    std::vector<double> selected(experts, 0), mean(experts, 0);
    double tokens = 0, selections = 0;
    for (size_t token = 0; token < logits.size(); ++token) {
      if (sequence[token] == number && group.home[token] >= 0) {
        const auto g = softmax(logits[token]);
        for (size_t expert = 0; expert < experts; ++expert) {
          selected[expert] += counted[token][expert];
          selections += counted[token][expert];
          mean[expert] += g[expert];
        }
        ++tokens;
      }
    }
    for (size_t expert = 0; expert < experts && tokens > 0; ++expert) {
      sum += static_cast<double>(experts) * selected[expert] / selections * mean[expert] / tokens;
    }
    sequences_with_tokens += tokens > 0 ? 1 : 0;
  }
  return sum / sequences_with_tokens;
}

// Returns 1 for the experts that a token selects: its k best, or those with a top-p weight.
Matrix selected_experts(const at::Tensor& logits, const route::RouterSettings& settings,
                        const route::Routing& routing) {
  Matrix counted(logits.size(0), std::vector<double>(logits.size(1), 0));
  for (int64_t token = 0; token < logits.size(0); ++token) {
    const auto order = ranked_experts(matrix_of(logits)[token]);
    for (int64_t choice = 0; choice < settings.k && settings.family->name == "topk"; ++choice) {
      counted[token][order[choice]] = 1;
    }
    for (int64_t expert = 0; expert < logits.size(1) && settings.family->name == "topp"; ++expert) {
      counted[token][expert] = routing.combine[token][expert].item<double>() > 0 ? 1 : 0;
    }
  }
  return counted;
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

}  // namespace

TEST_CASE("the z-loss equals loops over ranks, uneven and padded ones too", "[route]") {
  std::mt19937 random(31);
  for (int round = 0; round < 50; ++round) {
    auto input = random_routing(random, 40, 8, 4, 0, 0.3);
    input.group.wants_z_loss = true;
    for (const char* router : {"top2+ir+fr", "topp:0.5", "expert-choice"}) {
      INFO(router << " round " << round);
      const auto losses =
          route::route(input.logits, route::parse_router(router), input.group).losses;
      // 40 squares of sums of 8 terms: below 320 rounding errors.
      CHECK(losses.z.item<double>() ==
            Approx(z_by_loops(matrix_of(input.logits), input.group)).epsilon(4e-5));
    }
  }
}

TEST_CASE("the z-loss sees the shift of logits that no decision and no weight sees", "[route]") {
  std::mt19937 random(32);
  auto input = random_routing(random, 24, 4, 1);
  input.group.wants_z_loss = true;
  const auto settings = route::parse_router("top2+ir+fr:cf=1");
  const at::Tensor logits = input.logits.to(at::kDouble);
  const auto normaliser = at::logsumexp(logits, 1);
  const auto plain = route::route(logits, settings, input.group);
  for (const double shift : {-3.0, 0.5, 20.0}) {
    const auto moved = route::route(logits + shift, settings, input.group);
    CHECK(moved.losses.z.item<double>() ==
          Approx((normaliser + shift).square().mean().item<double>()));
    CHECK(at::equal(moved.plan.token, plain.plan.token));
    CHECK(at::equal(moved.plan.expert, plain.plan.expert));
    CHECK(distance(moved.combine, plain.combine) < 1e-12);
    CHECK(distance(moved.losses.load_balance, plain.losses.load_balance) < 1e-12);
  }
  // The loss is 0 for log-probabilities, whose exponentials sum to 1.
  const auto normed = route::route(at::log_softmax(logits, 1), settings, input.group);
  CHECK(normed.losses.z.item<double>() < 1e-24);
  // E equal logits of 0 give (ln E)^2.
  const auto zeros = route::route(at::zeros({24, 4}), settings, input.group);
  CHECK(zeros.losses.z.item<double>() == Approx(std::log(4.0) * std::log(4.0)));
}

TEST_CASE("balance within sequences equals loops over sequences, padded ones too", "[route]") {
  std::mt19937 random(33);
  for (int round = 0; round < 50; ++round) {
    auto input = random_routing(random, 40, 8, 4, 0, round % 2 == 0 ? 0.3 : 0);
    input.group.sequence = random_sequences(random, 40);
    for (const char* router : {"top1", "top2+ir+fr:cf=0.5", "top3:lb=selected", "topp:0.5"}) {
      INFO(router << " round " << round);
      const auto settings = route::parse_router(router);
      const auto routing = route::route(input.logits, settings, input.group);
      const Matrix counted = selected_experts(input.logits, settings, routing);
      CHECK(routing.losses.sequence_balance.item<double>() ==
            Approx(sequence_balance_by_loops(matrix_of(input.logits), counted, input.group))
                .epsilon(4e-5));
    }
  }
}

TEST_CASE("balance within sequences is 1 for a uniform router and E for one expert a sequence",
          "[route]") {
  auto group = route::spread_over_ranks(16, 2);
  group.sequence.emplace();
  for (int64_t token = 0; token < 16; ++token) {
    group.sequence->push_back(token / 4);
  }
  const auto loss = [&](const at::Tensor& logits, const char* router) {
    return route::route(logits, route::parse_router(router), group)
        .losses.sequence_balance.item<double>();
  };
  for (const char* router : {"top1", "top3", "top3:lb=selected", "topp:0.9"}) {
    CHECK(loss(at::zeros({16, 4}), router) == Approx(1));
  }
  // One expert per sequence: balanced over the batch, maximally unbalanced within each sequence.
  at::Tensor own = at::zeros({16, 4});
  for (int64_t token = 0; token < 16; ++token) {
    own[token][token / 4] = 100;
  }
  CHECK(loss(own, "top1") == Approx(4));
  auto whole = group;
  whole.sequence = std::vector<int64_t>(16, 0);
  CHECK(route::route(own, route::parse_router("top1"), whole)
            .losses.sequence_balance.item<double>() == Approx(1));
}

TEST_CASE("one sequence on one rank is the load-balance loss of selected experts over k",
          "[route]") {
  std::mt19937 random(34);
  auto input = random_routing(random, 30, 8, 1, 0, 0.2);
  input.group.sequence = std::vector<int64_t>(30, 0);
  for (const int64_t k : {1, 2, 5}) {
    const auto settings = route::parse_router(fmt::format("top{}:lb=selected", k));
    const auto losses = route::route(input.logits, settings, input.group).losses;
    CHECK(losses.sequence_balance.item<double>() ==
          Approx(losses.load_balance.item<double>() / static_cast<double>(k)).epsilon(1e-5));
  }
}

TEST_CASE("balance within sequences knows no ranks", "[route]") {
  std::mt19937 random(35);
  auto input = random_routing(random, 48, 8, 4);
  input.group.sequence = random_sequences(random, 48);
  const auto settings = route::parse_router("top2");
  const auto many = route::route(input.logits, settings, input.group).losses;
  auto alone = route::spread_over_ranks(48, 1);
  alone.sequence = input.group.sequence;
  const auto one = route::route(input.logits, settings, alone).losses;
  CHECK(many.sequence_balance.item<double>() == Approx(one.sequence_balance.item<double>()));
}

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
  auto input = random_routing(random, 12, 4, 2, 0, 0.2);
  input.group.wants_z_loss = true;
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
  for (const char* router : {"top1", "top2+ir+fr:cf=1", "topp:0.4", "expert-choice"}) {
    check(router, &route::AuxLosses::z);
  }
  for (const char* router : {"top1", "top2+ir+fr:cf=1", "topp:0.4"}) {
    check(router, &route::AuxLosses::sequence_balance);
  }
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

TEST_CASE(
    "z-loss and balance within sequences are there only where a run asks for them and the "
    "router has them",
    "[route]") {
  auto asked = route::spread_over_ranks(4, 1);
  asked.wants_z_loss = true;
  asked.sequence = std::vector<int64_t>{0, 0, 1, 1};
  for (const char* router : {"top2", "topp:0.4", "relu:k=1", "expert-choice"}) {
    INFO(router);
    const auto settings = route::parse_router(router);
    const auto silent =
        route::route(at::zeros({4, 4}), settings, route::spread_over_ranks(4, 1)).losses;
    CHECK_FALSE(silent.z.defined());
    CHECK_FALSE(silent.sequence_balance.defined());
    const auto losses = route::route(at::zeros({4, 4}), settings, asked).losses;
    CHECK(losses.z.defined() == settings.family->has_softmax_scores);
    CHECK(losses.sequence_balance.defined() == settings.family->load_balance_coef.has_value());
  }
}

TEST_CASE("a batch without tokens has z-loss and balance 0, with a gradient of nothing",
          "[route]") {
  route::RoutingGroup none;
  none.wants_z_loss = true;
  none.sequence.emplace();
  const auto logits = at::zeros({0, 4}).requires_grad_(true);
  const auto losses = route::route(logits, route::parse_router("top2"), none).losses;
  CHECK(losses.z.item<double>() == 0);
  CHECK(losses.sequence_balance.item<double>() == 0);
  (losses.z + losses.sequence_balance).backward();
  CHECK(logits.grad().sizes() == at::IntArrayRef({0, 4}));
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
