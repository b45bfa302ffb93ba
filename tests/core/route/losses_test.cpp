// Auxiliary losses against plain sums, finite differences and known values.

#include <functional>
#include <set>

#include "core/route/route.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

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

}  // namespace

TEST_CASE("balance and z-losses equal plain sums over ranks and sequences, padded ones too",
          "[route]") {
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

TEST_CASE("auxiliary losses have the gradient of finite differences", "[route]") {
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

TEST_CASE(
    "z-loss and balance within sequences are there only where a run asks for them and the "
    "router has them",
    "[route]") {
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

}  // namespace moe::test
