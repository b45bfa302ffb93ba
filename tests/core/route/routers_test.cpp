// All routers against the plain loops of reference.h on random inputs with ties, padding and uneven
// ranks, against the worked example of core/route/README.md, and on empty and non-finite inputs;
// the kernels of top-k against the rules in LibTorch operations.

#include <limits>
#include <set>

#include "core/route/route.h"
#include "tests/core/route/kernel_plan.h"
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
  const at::Tensor bias = settings.bias_rate ? at::randn({experts}) * 0.3 : at::Tensor();
  const auto routing = route::route(input.logits, settings, input.group, bias);
  const auto reference = reference_route(
      matrix_of(input.logits), matrix_of(routing.input.scores), settings, input.group,
      bias.defined() ? matrix_of(bias.unsqueeze(0)).front() : std::vector<double>());
  const int64_t k = routing.input.k;
  const auto rows = used_rows(routing.plan, input.group, experts);
  CHECK(words_of(rows, k) == words_of(reference.rows, k));  // readable failures
  CHECK((rows == reference.rows));
  CHECK((refused_rows(routing.plan, input.group, experts) == reference.refused));
  if (settings.bias_rate) {  // requests before capacity, without padding
    std::vector<int64_t> requests(experts, 0);
    for (const auto* rows : {&reference.rows, &reference.refused}) {
      for (const auto& row : *rows) {
        requests[row.expert] += row.choice < k ? 1 : 0;
      }
    }
    CHECK(route::read_counters({routing.counters})[0].requests_per_expert == requests);
  }
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
  const int64_t family = random() % 7;
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
  if (family == 2) {
    return route::parse_router(pick<const char*>(
        random, {"expert-choice:cf=1", "expert-choice:cf=0.3", "expert-choice:cf=inf"}));
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
  if (random() % 4 == 0) {
    settings.bias_rate = 0.001;
  }
  return settings;
}

// 8 tokens, 4 experts, 2 ranks: tokens 0-3 and experts 0, 1 are on rank 0.
at::Tensor worked_example() {
  return at::tensor({2.0, 1.0,  0.0,  -1.0, 1.5, 0.5, -0.5, 1.0,  1.0, 0.25, 0.75,
                     0.0, -1.,  0.0,  2.0,  1.0, 0.0, 2.0,  1.5,  0.5, -0.5, 1.0,
                     0.5, 1.25, 0.25, 0.0,  0.5, 2.5, 0.5,  0.25, 1.0, 1.5},
                    at::kFloat)
      .view({8, 4});
}

std::string routed(const std::string& router) {
  const auto settings = route::parse_router(router);
  const auto group = route::partition_tokens(8, 2);
  const auto routing = route::route(worked_example(), settings, group);
  return words_of(used_rows(routing.plan, group, 4), routing.input.k);
}

}  // namespace

TEST_CASE("every router agrees with the plain loops on random inputs", "[route]") {
  std::mt19937 random(1);
  at::manual_seed(1);
  for (int round = 0; round < 300; ++round) {
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

TEST_CASE("an empty batch gives an empty plan, zero losses and zero counters", "[route]") {
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const auto logits = at::zeros({0, 4}).requires_grad_(true);
    auto group = route::partition_tokens(0, 2);
    group.compute_z_loss = true;
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

TEST_CASE("W ranks in one process route like W processes of one rank", "[route]") {
  std::mt19937 random(7);
  for (const auto& settings : all_routers()) {
    INFO(to_string(settings));
    const int64_t ranks = 4;
    auto input = random_routing(random, 60, 8, ranks, 0.5, 0.1);
    input.group.compute_z_loss = true;
    const auto together = route::route(input.logits, settings, input.group);
    const auto all = used_rows(together.plan, input.group, 8);
    std::array<double, route::kAllLosses.size()> sums = {};
    int64_t with_tokens = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      route::RoutingGroup alone = input.group;
      bool has_tokens = false;
      for (auto& source_rank : alone.source_rank) {
        source_rank = source_rank == rank ? rank : -1;
        has_tokens = has_tokens || source_rank == rank;
      }
      with_tokens += has_tokens ? 1 : 0;
      const auto part = route::route(input.logits, settings, alone);
      std::vector<ReferenceRow> mine;
      std::copy_if(all.begin(), all.end(), std::back_inserter(mine),
                   [&](const auto& row) { return row.source_rank == rank; });
      CHECK((used_rows(part.plan, alone, 8) == mine));
      for (int64_t token = 0; token < 60; ++token) {
        if (alone.source_rank[token] == rank) {
          CHECK(at::equal(part.combine[token], together.combine[token]));
        }
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor& loss = part.losses.*route::kAllLosses[i];
        sums[i] += loss.defined() ? loss.item<double>() : 0;
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      // A loss is the mean over ranks with tokens; the f32 sums have another order.
      const at::Tensor& loss = together.losses.*route::kAllLosses[i];
      CHECK((!loss.defined() || std::abs(loss.item<double>() - sums[i] / with_tokens) < 1e-5));
    }
  }
}

TEST_CASE("non-finite logits give a valid plan", "[route]") {
  // A diverged run must fail with the trainer's error about its loss, not with a bad index here.
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), infinity, -infinity}) {
    for (const auto& settings : all_routers()) {
      INFO(to_string(settings) << " " << value);
      const auto group = route::partition_tokens(12, 2);
      const auto routing = route::route(at::full({12, 4}, value), settings, group);
      std::set<std::tuple<int64_t, int64_t, bool>> seen;
      for (const auto& row : used_rows(routing.plan, group, 4)) {
        CHECK(seen.emplace(row.token, row.expert, row.choice > routing.input.k).second);
      }
    }
  }
}

TEST_CASE("the routers give the results of the worked example of the README", "[route]") {
  const std::pair<const char*, const char*> plans[] = {
      {"top1:cf=inf", "e0:t0 e0:t1 e0:t2 e1:t4 e2:t3 e3:t6 e3:t7 e3:t5"},
      {"top1", "e0:t0 e1:t4 e2:t3 e3:t6"},
      {"top2:cf=1", "e0:t0 e1:t0 e1:t4 e2:t3 e2:t4 e3:t1 e3:t6"},
      {"top1+fr", "e0:t0 e1:t0+fr e1:t4 e2:t3 e2:t4+fr e3:t1+fr e3:t6"},
      {"top1+ir", "e0:t0 e0:t1+ir1 e0:t2+ir1 e1:t4 e2:t3 e3:t6 e3:t5+ir1 e3:t7+ir1"},
      {"top1+ir+fr",
       "e0:t0 e0:t2+ir1 e1:t0+fr e1:t4 e2:t3 e2:t4+fr e3:t1+fr e3:t6 e3:t5+ir1 e3:t7+ir1"},
      {"top2+ir:cf=1",
       "e0:t0 e0:t1+ir1 e0:t2+ir2 e1:t0 e1:t3+ir1 e1:t4 e2:t3 e2:t4 e3:t1 e3:t6 e3:t5+ir2 "
       "e3:t6+ir1 e3:t7+ir2"},
      {"topp:0.4", "e0:t0 e0:t1 e0:t2 e1:t4 e2:t2 e2:t3 e3:t5 e3:t6 e3:t7"},
      {"topp:0.4,max=1", "e0:t0 e0:t1 e0:t2 e1:t4 e2:t3 e3:t5 e3:t6 e3:t7"},
      {"relu:k=1",
       "e0:t0 e0:t1 e0:t2 e0:t6 e0:t7 e1:t0 e1:t1 e1:t2 e1:t4 e1:t5 e1:t7 e2:t2 e2:t3 e2:t4 e2:t5 "
       "e2:t6 e2:t7 e3:t1 e3:t3 e3:t4 e3:t5 e3:t6 e3:t7"}};
  for (const auto& [router, plan] : plans) {
    CAPTURE(router);
    CHECK(routed(router) == plan);
  }
}

TEST_CASE("top_p at p = 1 takes every expert", "[route]") {
  const auto logits = at::tensor({30.0, 0.0, 0.0, 0.0}, at::kFloat).view({1, 4});
  const auto routing =
      route::route(logits, route::parse_router("topp:1"), route::partition_tokens(1, 1));
  CHECK(routing.plan.rows.sum().item<int64_t>() == 4);
}

TEST_CASE("capacity is a ceiling that binary rounding does not lift", "[route]") {
  CHECK(route::capacity_slots(2.2, 100, 4) == 55);
  CHECK(route::capacity_slots(0.01, 4, 4) == 1);
  CHECK(route::capacity_slots(1.0, 0, 4) == 0);
  CHECK(route::capacity_slots(std::nullopt, 9, 4) == 9);
}

TEST_CASE("partition_tokens() gives contiguous, nearly equal parts", "[route]") {
  CHECK(route::partition_tokens(5, 2).source_rank == std::vector<int64_t>{0, 0, 0, 1, 1});
  CHECK(route::partition_tokens(3, 8).source_rank == std::vector<int64_t>{0, 2, 5});
  CHECK(route::partition_tokens(0, 4).source_rank.empty());
}

TEST_CASE("CPU kernels equal the rules, unused rows included", "[route]") {
  check_planned_routers(at::kCPU, {{0, 2, false},
                                   {1, 1, false},
                                   {1, 4, true},
                                   {31, 4, true},
                                   {33, 2, false},
                                   {33, 1, true},
                                   {64, 4, false},
                                   {1100, 2, true},
                                   {1100, 4, false}});
}

}  // namespace moe::test
