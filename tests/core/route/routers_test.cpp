// All routers against the properties of promises.h and the plain loops of reference.h, on random
// inputs with ties, padding and uneven ranks.

#include <limits>
#include <set>

#include "core/route/route.h"
#include "tests/core/route/promises.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

using route::RouterSettings;

// Bound of |w - reference|: a softmax of f32 logits up to A = 10 has the relative error (A + E)
// eps, which is 42 * 1.2e-7 = 5e-6 for E <= 32.
constexpr double kWeightTolerance = 1e-5;

void check_against_reference(const RandomRouting& input, const RouterSettings& settings) {
  const int64_t experts = input.logits.size(1);
  const auto routing = route::route(input.logits, settings, input.group);
  const auto reference = reference_route(matrix_of(input.logits), matrix_of(routing.input.scores),
                                         settings, input.group);
  const int64_t k = routing.input.k;
  CHECK(words_of(used_rows(routing.plan, input.group, experts), k) == words_of(reference.rows, k));
  CHECK((used_rows(routing.plan, input.group, experts) == reference.rows));
  CHECK((refused_rows(routing.plan, input.group, experts) == reference.refused));
  at::Tensor rebuilt = at::zeros({input.logits.size(0) * experts});
  const at::Tensor cell = (routing.plan.token * experts + routing.plan.expert)
                              .masked_fill(routing.plan.expert == experts, 0);
  if (cell.numel() > 0) {
    rebuilt = rebuilt.index_add(0, cell, routing.weights);
  }
  const Matrix weights = matrix_of(routing.combine),
               by_rows = matrix_of(rebuilt.view_as(input.logits));
  double worst = 0;
  for (size_t token = 0; token < weights.size(); ++token) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      const double want = reference.weights[token][expert];
      worst = std::max({worst, std::abs(weights[token][expert] - want) / (1 + want),
                        std::abs(by_rows[token][expert] - want) / (1 + want)});
    }
  }
  CHECK(worst < kWeightTolerance);
}

template <typename Value>
Value pick(std::mt19937& random, const std::vector<Value>& values) {
  return values[random() % values.size()];
}

RouterSettings random_settings(std::mt19937& random, int64_t experts) {
  RouterSettings settings;
  const int64_t family = random() % 6;
  if (family == 0) {
    settings = route::parse_router("topp:0.4");
    settings.p = pick<double>(random, {0, 0.1, 0.37, 0.7, 1});
    if (random() % 2 == 0) {
      settings.max_experts = 1 + static_cast<int64_t>(random() % experts);
    }
    return settings;
  }
  if (family == 1) {
    return route::parse_router("relu:k=1");
  }
  settings.k = 1 + static_cast<int64_t>(
                       random() % std::min<int64_t>(experts, random() % 4 == 0 ? experts : 3));
  const double factor = pick<double>(random, {0, 0.25, 0.5, 0.75, 1, 1.25, 2});
  if (factor > 0) {
    settings.capacity_factor = factor;
  }
  settings.ir = random() % 2 == 0;
  settings.fr = random() % 2 == 0;
  settings.gate_norm = random() % 4 == 0 ? route::GateNorm::kNone : route::GateNorm::kSelected;
  settings.slot_order = random() % 4 == 0 ? route::SlotOrder::kScore : route::SlotOrder::kChoice;
  return settings;
}

}  // namespace

TEST_CASE("every router agrees with the plain loops on random inputs", "[route]") {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const int64_t ranks = pick<int64_t>(random, {1, 1, 2, 3, 4, 8});
    const int64_t experts = ranks * (1 + static_cast<int64_t>(random() % (32 / ranks)));
    const int64_t tokens = pick<int64_t>(random, {0, 1, 2, 3, 7, 16, 33, 64, 255, 256});
    const double grid = pick<double>(random, {0, 0, 0.5, 2});
    const double padding = pick<double>(random, {0, 0, 0.3, 1});
    const auto settings = random_settings(random, experts);
    INFO("round " << round << ": " << to_string(settings) << " T " << tokens << " E " << experts
                  << " W " << ranks << " grid " << grid << " padding " << padding);
    check_against_reference(random_routing(random, tokens, experts, ranks, grid, padding),
                            settings);
  }
}

TEST_CASE("every router keeps its promises on awkward shapes", "[route]") {
  struct Shape {
    int64_t tokens, experts, ranks;
    double grid, padding;
  };
  const std::vector<Shape> shapes = {{1, 1, 1, 0, 0},     // one expert
                                     {9, 1, 1, 0, 0},     //
                                     {1, 8, 4, 0, 0},     // one token, most ranks empty
                                     {3, 8, 2, 0, 0},     // fewer tokens than experts
                                     {40, 4, 4, 0, 0.3},  //
                                     {64, 8, 2, 9, 0.2},  // almost all scores equal
                                     {5, 4, 2, 0, 1}};    // padding only
  std::mt19937 random(2);
  for (const auto& shape : shapes) {
    for (const auto& settings : all_routers()) {
      if (fits(settings, shape.experts)) {
        INFO(to_string(settings) << " T " << shape.tokens << " E " << shape.experts);
        const auto input = random_routing(random, shape.tokens, shape.experts, shape.ranks,
                                          shape.grid, shape.padding);
        check_promises(input.logits, settings, input.group);
      }
    }
  }
}

TEST_CASE("an empty batch gives an empty plan, zero losses and zero counters", "[route]") {
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const auto logits = at::zeros({0, 4}).requires_grad_(true);
    auto group = route::spread_over_ranks(0, 2);
    group.wants_z_loss = true;
    group.sequence.emplace();
    const auto routing = route::route(logits, settings, group);
    CHECK(routing.plan.token.numel() == 0);
    CHECK(routing.combine.sizes() == at::IntArrayRef({0, 4}));
    CHECK(routing.weights.numel() == 0);
    const auto values = route::read_counters({routing.counters})[0];
    CHECK(values.tokens + values.requests + values.slots_total + values.rows() == 0);
    CHECK(values.tokens_per_expert.size() == 4);
    for (const auto member : route::kAllLosses) {
      const at::Tensor& loss = routing.losses.*member;
      CHECK((!loss.defined() || loss.item<double>() == 0));
    }
  }
}

TEST_CASE("permuted tokens give the permuted plan when no scores tie", "[route]") {
  std::mt19937 random(3);
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const auto input = random_routing(random, 48, 8, 2, 0, 0.1);
    std::vector<int64_t> order(48);
    for (int64_t i = 0; i < 48; ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random);
    route::RoutingGroup moved = input.group;
    for (int64_t i = 0; i < 48; ++i) {
      moved.home[i] = input.group.home[order[i]];
    }
    const auto straight = route::route(input.logits, settings, input.group);
    const auto permuted =
        route::route(input.logits.index_select(0, at::tensor(order)), settings, moved);
    std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> before, after;
    for (const auto& row : used_rows(straight.plan, input.group, 8)) {
      before.emplace(row.expert, row.token, row.choice, row.count);
    }
    for (const auto& row : used_rows(permuted.plan, moved, 8)) {
      after.emplace(row.expert, order[row.token], row.choice, row.count);
    }
    CHECK((before == after));
  }
}

TEST_CASE("permuted experts give the permuted plan on one rank when no scores tie", "[route]") {
  std::mt19937 random(5);
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const auto input = random_routing(random, 48, 8, 1, 0, 0.1);
    std::vector<int64_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(order.begin(), order.end(), random);
    const auto straight = route::route(input.logits, settings, input.group);
    const auto permuted =
        route::route(input.logits.index_select(1, at::tensor(order)), settings, input.group);
    std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> before, after;
    for (const auto& row : used_rows(straight.plan, input.group, 8)) {
      before.emplace(row.expert, row.token, row.choice, row.count);
    }
    for (const auto& row : used_rows(permuted.plan, input.group, 8)) {
      after.emplace(order[row.expert], row.token, row.choice, row.count);
    }
    CHECK((before == after));
  }
}

TEST_CASE("what all ranks decide together is what each decides alone", "[route]") {
  // One process with W logical ranks must agree with W processes with one rank and its tokens each.
  std::mt19937 random(7);
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const int64_t ranks = 4;
    auto input = random_routing(random, 60, 8, ranks, 0.5, 0.1);
    input.group.wants_z_loss = true;
    const auto together = route::route(input.logits, settings, input.group);
    const auto all = used_rows(together.plan, input.group, 8);
    double balance = 0, entropy = 0, l1 = 0, z = 0;
    int64_t with_tokens = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      route::RoutingGroup alone = input.group;
      bool has_tokens = false;
      for (auto& home : alone.home) {
        home = home == rank ? rank : -1;
        has_tokens = has_tokens || home == rank;
      }
      with_tokens += has_tokens ? 1 : 0;
      const auto part = route::route(input.logits, settings, alone);
      std::vector<ReferenceRow> mine;
      std::copy_if(all.begin(), all.end(), std::back_inserter(mine),
                   [&](const auto& row) { return row.home == rank; });
      CHECK((used_rows(part.plan, alone, 8) == mine));
      for (int64_t token = 0; token < 60; ++token) {
        if (alone.home[token] == rank) {
          CHECK(at::equal(part.combine[token], together.combine[token]));
        }
      }
      const auto value = [](const at::Tensor& loss) {
        return loss.defined() ? loss.item<double>() : 0;
      };
      balance += value(part.losses.load_balance);
      entropy += value(part.losses.entropy);
      l1 += value(part.losses.l1);
      z += value(part.losses.z);
    }
    // A loss is the mean over ranks with tokens; the f32 sums have another order.
    const auto close = [&](const at::Tensor& loss, double sum) {
      return !loss.defined() || std::abs(loss.item<double>() - sum / with_tokens) < 1e-5;
    };
    CHECK(close(together.losses.load_balance, balance));
    CHECK(close(together.losses.entropy, entropy));
    CHECK(close(together.losses.l1, l1));
    CHECK(close(together.losses.z, z));
  }
}

TEST_CASE("equal scores are settled by the lower index", "[route]") {
  const auto group = route::spread_over_ranks(8, 2);
  const auto routing =
      route::route(at::zeros({8, 4}), route::parse_router("top2+ir+fr:cf=1"), group);
  // All tokens request e0, then e1, then e2; one slot per (rank, expert). Rank 1 rectifies with e2.
  CHECK(words_of(used_rows(routing.plan, group, 4), 2) ==
        "e0:t0 e0:t1+ir2 e0:t2+ir2 e0:t3+ir2 e0:t4 e1:t0 e1:t4 e2:t0+fr e2:t4+fr e2:t5+ir2 "
        "e2:t6+ir2 e2:t7+ir2");
}

TEST_CASE("a router survives logits that are not numbers", "[route]") {
  // A diverged run must fail with the trainer's error about its loss, not with a bad index here.
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), infinity, -infinity}) {
    for (const auto& settings : all_routers()) {
      INFO(to_string(settings) << " " << value);
      const auto group = route::spread_over_ranks(12, 2);
      const auto routing = route::route(at::full({12, 4}, value), settings, group);
      check_rows_are_sorted_and_unique(used_rows(routing.plan, group, 4), routing.input.k);
    }
  }
}

TEST_CASE("the number of rows does not depend on the scores", "[route]") {
  std::mt19937 random(4);
  for (const auto& settings : all_routers()) {
    const auto a = random_routing(random, 32, 8, 2);
    auto b = random_routing(random, 32, 8, 2, 1);
    b.group = a.group;
    CHECK(route::route(a.logits, settings, a.group).plan.token.numel() ==
          route::route(b.logits, settings, b.group).plan.token.numel());
  }
}

}  // namespace moe::test
