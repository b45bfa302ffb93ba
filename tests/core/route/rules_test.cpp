// The worked example of core/route/README.md, and the identities of top-k.

#include "core/route/plan.h"
#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

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
  const auto group = route::spread_over_ranks(8, 2);
  const auto routing = route::route(worked_example(), settings, group);
  return words_of(used_rows(routing.plan, group, 4), routing.input.k);
}

std::string refused(const std::string& router) {
  const auto group = route::spread_over_ranks(8, 2);
  const auto routing = route::route(worked_example(), route::parse_router(router), group);
  return words_of(refused_rows(routing.plan, group, 4), routing.input.k);
}

bool same_plan(const route::Routing& a, const route::Routing& b, const route::RoutingGroup& group) {
  // Compares (expert, token); the choice of a row may differ.
  std::set<std::pair<int64_t, int64_t>> rows_a, rows_b;
  for (const auto& row : used_rows(a.plan, group, a.input.experts())) {
    rows_a.emplace(row.expert, row.token);
  }
  for (const auto& row : used_rows(b.plan, group, b.input.experts())) {
    rows_b.emplace(row.expert, row.token);
  }
  return rows_a == rows_b;
}

}  // namespace

TEST_CASE("top_k requests the best experts of each token", "[route]") {
  CHECK(routed("top1:cf=inf") == "e0:t0 e0:t1 e0:t2 e1:t4 e2:t3 e3:t6 e3:t7 e3:t5");
}

TEST_CASE("within_capacity drops the lowest scores of a full expert", "[route]") {
  CHECK(routed("top1") == "e0:t0 e1:t4 e2:t3 e3:t6");
  CHECK(refused("top1") == "e0:t1 e0:t2 e3:t7 e3:t5");
}

TEST_CASE("slots are given choice by choice, or by score when asked", "[route]") {
  CHECK(routed("top2:cf=1") == "e0:t0 e1:t0 e1:t4 e2:t3 e2:t4 e3:t1 e3:t6");
  // One expert, one slot: first choice of t0 at 0.4, second choice of t1 at 0.45.
  const auto logits =
      at::tensor({0.40, 0.30, 0.30, 0.45, 0.50, 0.05}, at::kFloat).log().view({2, 3});
  const auto group = route::spread_over_ranks(2, 1);
  const auto by_choice = route::route(logits, route::parse_router("top2:cf=1"), group);
  const auto by_score = route::route(logits, route::parse_router("top2:cf=1,order=score"), group);
  CHECK(words_of(used_rows(by_choice.plan, group, 3), 2) == "e0:t0 e1:t1");
  CHECK(words_of(used_rows(by_score.plan, group, 3), 2) == "e0:t1 e1:t1");
}

TEST_CASE("fill_in gives free slots to the next choices", "[route]") {
  CHECK(routed("top1+fr") == "e0:t0 e1:t0+fr e1:t4 e2:t3 e2:t4+fr e3:t1+fr e3:t6");
  CHECK(refused("top1+fr") == refused("top1"));
}

TEST_CASE("intra_gpu sends what is short to the best expert at home", "[route]") {
  CHECK(routed("top1+ir") == "e0:t0 e0:t1+ir1 e0:t2+ir1 e1:t4 e2:t3 e3:t6 e3:t5+ir1 e3:t7+ir1");
  CHECK(routed("top1+ir+fr") ==
        "e0:t0 e0:t2+ir1 e1:t0+fr e1:t4 e2:t3 e2:t4+fr e3:t1+fr e3:t6 e3:t5+ir1 e3:t7+ir1");
  CHECK(
      routed("top2+ir:cf=1") ==
      "e0:t0 e0:t1+ir1 e0:t2+ir2 e1:t0 e1:t3+ir1 e1:t4 e2:t3 e2:t4 e3:t1 e3:t6 e3:t5+ir2 e3:t6+ir1 "
      "e3:t7+ir2");
}

TEST_CASE("top_p takes experts until the probability is reached", "[route]") {
  CHECK(routed("topp:0.4") == "e0:t0 e0:t1 e0:t2 e1:t4 e2:t2 e2:t3 e3:t5 e3:t6 e3:t7");
  CHECK(routed("topp:0.4,max=1") == "e0:t0 e0:t1 e0:t2 e1:t4 e2:t3 e3:t5 e3:t6 e3:t7");
  CHECK(routed("topp:0") == routed("topp:0.1"));
}

TEST_CASE("top_p at p = 1 takes every expert", "[route]") {
  const auto logits = at::tensor({30.0, 0.0, 0.0, 0.0}, at::kFloat).view({1, 4});
  const auto routing =
      route::route(logits, route::parse_router("topp:1"), route::spread_over_ranks(1, 1));
  CHECK(routing.plan.rows.sum().item<int64_t>() == 4);
}

TEST_CASE("positive takes every positive logit", "[route]") {
  CHECK(routed("relu:k=1") ==
        "e0:t0 e0:t1 e0:t2 e0:t6 e0:t7 e1:t0 e1:t1 e1:t2 e1:t4 e1:t5 e1:t7 e2:t2 e2:t3 e2:t4 e2:t5 "
        "e2:t6 e2:t7 e3:t1 e3:t3 e3:t4 e3:t5 e3:t6 e3:t7");
}

TEST_CASE("capacity is a ceiling that binary rounding does not lift", "[route]") {
  CHECK(route::capacity_slots(2.2, 100, 4) == 55);
  CHECK(route::capacity_slots(0.01, 4, 4) == 1);
  CHECK(route::capacity_slots(1.0, 0, 4) == 0);
  CHECK(route::capacity_slots(std::nullopt, 9, 4) == 9);
}

TEST_CASE("valid tokens spread over ranks in contiguous, nearly equal parts", "[route]") {
  CHECK(route::spread_over_ranks(5, 2).home == std::vector<int64_t>{0, 0, 0, 1, 1});
  CHECK(route::spread_over_ranks(3, 8).home == std::vector<int64_t>{0, 2, 5});
  CHECK(route::spread_over_ranks(0, 4).home.empty());
}

TEST_CASE("fill-in at k is top-(k+1) at the same capacity", "[route]") {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const auto input = random_routing(random, 32, 8, 2, round % 2 == 0 ? 0 : 0.5, 0.1);
    for (const int64_t k : {1, 2, 3}) {
      for (const double factor : {0.5, 1.0, 2.0}) {
        route::RouterSettings fr, up;
        fr.k = k;
        up.k = k + 1;
        fr.fr = true;
        fr.capacity_factor = up.capacity_factor = factor;
        const auto a = route::route(input.logits, fr, input.group);
        const auto b = route::route(input.logits, up, input.group);
        CHECK(same_plan(a, b, input.group));
        CHECK(at::equal(a.plan.token.narrow(0, 0, a.plan.rows.sum().item<int64_t>()),
                        b.plan.token.narrow(0, 0, b.plan.rows.sum().item<int64_t>())));
        CHECK(at::equal(a.combine, b.combine));
      }
    }
  }
}

TEST_CASE("top1+ir on one rank is top-1 without capacity, at any capacity", "[route]") {
  std::mt19937 random(12);
  for (const char* factor : {"0.1", "0.25", "0.5", "1", "2"}) {
    const auto input = random_routing(random, 64, 8, 1);
    const auto router = route::parse_router(std::string("top1+ir:cf=") + factor);
    const auto ir = route::route(input.logits, router, input.group);
    const auto plain = route::route(input.logits, route::parse_router("top1:cf=inf"), input.group);
    CHECK(same_plan(ir, plain, input.group));
    CHECK(at::equal(ir.combine, plain.combine));
  }
}

TEST_CASE("drops equal padding when the capacity factor is k and divides evenly", "[route]") {
  std::mt19937 random(13);
  for (int round = 0; round < 20; ++round) {
    for (const char* router : {"top1", "top2", "top3", "top4"}) {
      auto input = random_routing(random, 64, 8, 4);
      input.group = route::spread_over_ranks(64, 4);
      const auto routing = route::route(input.logits, route::parse_router(router), input.group);
      const auto counts = route::read_counters({routing.counters})[0];
      CHECK(counts.dropped_requests == counts.padding);
      CHECK(counts.slots_used + counts.dropped_requests == counts.requests);
    }
  }
}

TEST_CASE("weights of every served token sum to one, and +ir serves every token", "[route]") {
  std::mt19937 random(14);
  for (int round = 0; round < 40; ++round) {
    const auto input = random_routing(random, 48, 8, 4);
    for (const char* router : {"top1", "top2+fr:cf=0.5", "top1+ir:cf=0.25", "top2+ir+fr:cf=1"}) {
      const auto settings = route::parse_router(router);
      const auto sums = route::route(input.logits, settings, input.group).combine.sum(1);
      const auto served = sums > 0;
      CHECK((!settings.ir || served.all().item<bool>()));
      // k + 1 <= 3 terms, each within a few eps of exact.
      CHECK((sums.masked_select(served) - 1).abs().max().item<double>() < 1e-6);
    }
  }
}

}  // namespace moe::test
