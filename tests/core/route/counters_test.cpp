// Counters of the worked example of SPEC section 14, their sums, and what is derived from them.

#include "core/route/counters.h"

#include "tests/core/route/random_routing.h"

namespace moe::test {
namespace {

route::CounterValues count(const torch::Tensor& logits, const char* router, int64_t ranks) {
  const auto routing = route::route(
      logits, route::parse_router(router), route::spread_over_ranks(logits.size(0), ranks));
  return route::read_counters({routing.counters})[0];
}

}  // namespace

TEST_CASE("counters say what a crowded expert cost", "[route]") {
  // Four tokens on one rank, all want e0 then e1, one slot per expert.
  const auto logits = torch::tensor({4.0, 1.0, 0.0, 0.0}, torch::kFloat).repeat({4, 1});
  const auto plain = count(logits, "top1", 1);
  CHECK(plain.tokens == 4);
  CHECK(plain.requests == 4);
  CHECK(plain.dropped_requests == 3);
  CHECK(plain.dropped_tokens == 3);
  CHECK(plain.unserved_tokens == 3);
  CHECK(plain.slots_total == 4);
  CHECK(plain.slots_used == 1);
  CHECK(plain.padding == 3);
  CHECK(plain.load == std::vector<int64_t>{1, 0, 0, 0});
  CHECK(plain.dead_experts() == 3);
  CHECK(plain.load_max_over_mean() == 4);
  CHECK(plain.experts_per_token() == 0.25);
  CHECK(plain.sparsity() == 1 - 1.0 / 16);

  const auto both = count(logits, "top1+ir+fr", 1);
  CHECK(both.fr_requests == 4);
  CHECK(both.fr_filled == 1);
  CHECK(both.fr_rejected == 3);
  CHECK(both.ir_tokens == 3);
  CHECK(both.dropped_requests == 3);
  CHECK(both.dropped_tokens == 3);
  CHECK(both.unserved_tokens == 0);
  CHECK(both.rows() == 5);
}

TEST_CASE("counters of a uniform router show its entropy", "[route]") {
  CHECK(count(torch::zeros({6, 4}), "top1", 2).entropy_sum == Approx(6 * std::log(4.0)));
  CHECK(count(torch::zeros({6, 4}), "relu:k=1", 2).entropy_sum == 0);
}

TEST_CASE("routers without capacity have no slots and drop no request", "[route]") {
  for (const char* router : {"topp:0.4", "relu:k=1"}) {
    std::mt19937 random(31);
    const auto values = count(random_routing(random, 32, 8, 1).logits, router, 2);
    CHECK(values.requests == values.rows());
    CHECK(values.dropped_requests + values.slots_total + values.slots_used + values.padding == 0);
    CHECK(values.fr_requests + values.fr_filled + values.ir_tokens == 0);
  }
}

TEST_CASE("counters of layers are read together and add up", "[route]") {
  std::mt19937 random(32);
  const auto input = random_routing(random, 32, 8, 2, 0, 0.2);
  const auto a = route::route(input.logits, route::parse_router("top2+ir+fr:cf=1"), input.group);
  const auto b = route::route(input.logits, route::parse_router("top1"), input.group);
  const auto values = route::read_counters({a.counters, b.counters});
  REQUIRE(values.size() == 2);
  route::CounterValues total;
  total.add(values[0]);
  total.add(values[1]);
  CHECK(total.tokens == 2 * values[0].tokens);
  CHECK(total.requests == values[0].requests + values[1].requests);
  CHECK(total.padding == values[0].padding + values[1].padding);
  CHECK(total.entropy_sum == Approx(values[0].entropy_sum + values[1].entropy_sum));
  CHECK(total.rows() == values[0].rows() + values[1].rows());
  CHECK(route::read_counters({}).empty());
}

TEST_CASE("padding tokens are counted nowhere", "[route]") {
  std::mt19937 random(33);
  auto input = random_routing(random, 24, 4, 2);
  const auto few = route::route(input.logits.narrow(0, 0, 16),
                                route::parse_router("top2+ir+fr"),
                                {{input.group.home.begin(), input.group.home.begin() + 16}, 2});
  std::fill(input.group.home.begin() + 16, input.group.home.end(), -1);
  const auto padded = route::route(input.logits, route::parse_router("top2+ir+fr"), input.group);
  CHECK(torch::equal(few.counters.scalars, padded.counters.scalars));
  CHECK(torch::equal(few.counters.load, padded.counters.load));
}

}  // namespace moe::test
