// Counters against plain loops, their sums over layers, and their JSON and table.

#include "core/route/counters.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/core/route/random_routing.h"

namespace moe::test {
namespace {

route::CounterValues count(const at::Tensor& logits, const route::RouterSettings& router,
                           const route::RoutingGroup& group) {
  return route::read_counters({route::route(logits, router, group).counters})[0];
}

route::CounterValues count(const at::Tensor& logits, const char* router, int64_t ranks) {
  return count(logits, route::parse_router(router),
               route::spread_over_ranks(logits.size(0), ranks));
}

// Reference: counts one row and one token at a time.
struct SlowCount {
  const route::RouterSettings& settings;
  const RandomRouting& input;
  int64_t experts = 0;
  route::CounterValues values;
  std::map<int64_t, std::array<int64_t, 3>> rows_of_token;  // first k choices, fill-in, IR

  SlowCount(const route::RouterSettings& router, const RandomRouting& random)
      : settings(router), input(random), experts(random.logits.size(1)) {
    const Matrix logits = matrix_of(input.logits);
    // The plan is that of route(), which routers_test.cpp checks.
    const route::Plan plan = route::route(input.logits, settings, input.group).plan;
    values.tokens_per_expert.resize(experts);
    values.rank_dropped.resize(input.group.ranks);
    values.rank_ir.resize(input.group.ranks);
    values.requests_per_expert.resize(settings.bias_rate ? experts : 0);
    for (size_t token = 0; token < logits.size(); ++token) {
      if (input.group.home[token] >= 0) {
        add_token(logits[token]);
        add_requests(logits[token]);
        rows_of_token[static_cast<int64_t>(token)] = {};
      }
    }
    for (const auto& row : used_rows(plan, input.group, experts)) {
      add_row(row);
    }
    for (const auto& row : refused_rows(plan, input.group, experts)) {
      ++values.dropped_requests;
      ++values.rank_dropped[row.home];
    }
    for (const auto& [token, rows] : rows_of_token) {
      values.dropped_tokens += rows[0] + rows[1] == 0;
      values.unserved_tokens += rows[0] + rows[1] + rows[2] == 0;
    }
    if (has_slots()) {
      add_slots();
    }
    values.fr_rejected = values.fr_requests - values.fr_filled;
  }

  bool has_slots() const { return settings.family->has_slots; }
  bool has_requests() const { return settings.family->tokens_request; }
  bool has_buffers() const { return has_slots() && settings.capacity_factor; }
  int64_t k() const { return has_requests() ? settings.k : experts; }

  void add_token(const std::vector<double>& logits) {
    ++values.tokens;
    values.requests += has_requests() ? settings.k : 0;
    values.fr_requests += settings.fr && settings.k < experts;
    for (const double g : softmax(logits)) {
      values.entropy_sum -= settings.family->has_softmax_scores ? g * std::log(g) : 0;
    }
  }

  // Counts the first k experts by logit, ties by index; the bias is zero here.
  void add_requests(const std::vector<double>& logits) {
    std::vector<int64_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
      return logits[static_cast<size_t>(left)] > logits[static_cast<size_t>(right)];
    });
    for (int64_t choice = 0; settings.bias_rate && choice < settings.k; ++choice) {
      ++values.requests_per_expert[static_cast<size_t>(order[static_cast<size_t>(choice)])];
    }
  }

  void add_row(const ReferenceRow& row) {
    const int64_t kind = row.choice < k() ? 0 : row.choice == k() ? 1 : 2;
    ++rows_of_token[row.token][kind];
    ++values.tokens_per_expert[row.expert];
    values.requests += has_requests() ? 0 : 1;
    values.fr_filled += kind == 1;
    values.ir_tokens += kind == 2;
    values.rank_ir[row.home] += kind == 2;
    values.slots_used += has_slots() && kind < 2;
    const int64_t owner = row.expert / (experts / input.group.ranks);
    values.rows_sent += !has_buffers() && owner != row.home;
  }

  void add_slots() {
    for (int64_t rank = 0; rank < input.group.ranks; ++rank) {
      const int64_t tokens = std::count(input.group.home.begin(), input.group.home.end(), rank);
      for (int64_t expert = 0; expert < experts; ++expert) {
        const int64_t slots = route::capacity_slots(settings.capacity_factor, tokens, experts);
        values.slots_total += slots;
        const bool is_local = expert / (experts / input.group.ranks) == rank;
        values.rows_sent += has_buffers() && !is_local ? slots : 0;
      }
    }
    values.padding = values.slots_total - values.slots_used;
  }
};

// Returns the counters by name, for readable failures.
std::string words_of(const route::CounterValues& values) {
  OrderedJson json = route::to_json(values, 0);
  json.erase("entropy");
  return json.dump();
}

}  // namespace

TEST_CASE("counters say what a crowded expert cost", "[route]") {
  // Four tokens on one rank, all request e0, then e1, one slot per expert.
  const auto logits = at::tensor({4.0, 1.0, 0.0, 0.0}, at::kFloat).repeat({4, 1});
  const auto plain = count(logits, "top1", 1);
  CHECK(plain.tokens == 4);
  CHECK(plain.requests == 4);
  CHECK(plain.dropped_requests == 3);
  CHECK(plain.dropped_tokens == 3);
  CHECK(plain.unserved_tokens == 3);
  CHECK(plain.slots_total == 4);
  CHECK(plain.slots_used == 1);
  CHECK(plain.padding == 3);
  CHECK(plain.rows_sent == 0);
  CHECK(plain.rank_dropped == std::vector<int64_t>{3});
  CHECK(plain.tokens_per_expert == std::vector<int64_t>{1, 0, 0, 0});
  CHECK(plain.dead_experts() == 3);
  CHECK(plain.load_max_over_mean() == 4);
  CHECK(plain.experts_per_token() == 0.25);
  CHECK(plain.sparsity() == 1 - 1.0 / 16);

  const auto both = count(logits, "top1+ir+fr", 1);
  CHECK(both.fr_requests == 4);
  CHECK(both.fr_filled == 1);
  CHECK(both.fr_rejected == 3);
  CHECK(both.ir_tokens == 3);
  CHECK(both.rank_ir == std::vector<int64_t>{3});
  CHECK(both.dropped_requests == 3);
  CHECK(both.dropped_tokens == 3);
  CHECK(both.unserved_tokens == 0);
  CHECK(both.rows() == 5);
}

TEST_CASE("counters equal plain loops, for every router on random groups", "[route]") {
  std::mt19937 random(30);
  int64_t empty_experts = 0, dropped_tokens = 0, sent = 0;
  for (int round = 0; round < 12; ++round) {
    for (auto settings : all_routers()) {
      const int64_t experts = round % 3 == 0 ? 4 : 8;
      if (!fits(settings, experts)) {
        continue;
      }
      if (settings.capacity_factor && round % 2 == 1) {
        settings.capacity_factor = 0.5;
      }
      INFO(to_string(settings) << ", round " << round);
      const int64_t ranks = std::array<int64_t, 4>{1, 2, 4, experts}[round % 4];
      const auto input = random_routing(random, 5 + 9 * round, experts, ranks, 0, 0.2);
      const SlowCount slow(settings, input);
      const auto fast = count(input.logits, settings, input.group);
      CHECK(words_of(fast) == words_of(slow.values));
      // f32 sums of E terms of at most ln E, f64 across tokens.
      CHECK(fast.entropy_sum == Approx(slow.values.entropy_sum).epsilon(1e-5));
      empty_experts += fast.dead_experts();
      dropped_tokens += fast.dropped_tokens;
      sent += fast.rows_sent;

      const auto routing = route::route(input.logits, settings, input.group);
      const auto rows = matrix_of(route::count_rows_by_token(routing.input, routing.plan));
      REQUIRE(rows.size() == input.group.home.size());
      for (size_t token = 0; token < rows.size(); ++token) {
        const auto found = slow.rows_of_token.find(static_cast<int64_t>(token));
        const auto expected =
            found == slow.rows_of_token.end() ? std::array<int64_t, 3>{} : found->second;
        std::vector<double> all(expected.begin(), expected.end());
        all.resize(3 + static_cast<size_t>(experts));
        for (int64_t row = 0; row < routing.plan.token.numel(); ++row) {
          const auto expert = routing.plan.expert[row].item<int64_t>();
          if (expert < experts &&
              routing.plan.token[row].item<int64_t>() == static_cast<int64_t>(token)) {
            ++all[3 + static_cast<size_t>(expert)];
          }
        }
        CHECK(rows[token] == all);
      }
    }
  }
  // The rounds covered dead experts, dropped tokens and sent rows.
  CHECK(empty_experts > 0);
  CHECK(dropped_tokens > 0);
  CHECK(sent > 0);
}

TEST_CASE("what travels between ranks is the same for plain, +ir, +fr and +ir+fr", "[route]") {
  std::mt19937 random(34);
  for (int round = 0; round < 20; ++round) {
    const auto input = random_routing(random, 60, 8, 4, 0, 0.1);
    for (const std::string cf : {":cf=0.5", ":cf=1", ":cf=2"}) {
      for (const std::string top : {"top1", "top2"}) {
        const auto sent = [&](const std::string& modifiers) {
          const auto router = route::parse_router(top + modifiers + cf);
          return count(input.logits, router, input.group).rows_sent;
        };
        CHECK(sent("") > 0);
        CHECK(sent("+ir") == sent(""));
        CHECK(sent("+fr") == sent(""));
        CHECK(sent("+ir+fr") == sent(""));
      }
    }
  }
  // 64 tokens on 4 ranks, 8 experts: C_r = 2 slots at each of 6 remote experts, for 4 ranks.
  const auto logits = random_routing(random, 64, 8, 1).logits;
  CHECK(count(logits, "top1", 4).rows_sent == 4 * 6 * 2);
  CHECK(count(logits, "top1", 1).rows_sent == 0);
  CHECK(count(logits, "top1:cf=inf", 1).rows_sent == 0);
  const auto json = route::to_json(count(logits, "top1", 4), /*row_bytes=*/256);
  CHECK(json["bytes_sent"] == 2 * 48 * 256);
}

TEST_CASE("counters of a uniform router show its entropy", "[route]") {
  CHECK(count(at::zeros({6, 4}), "top1", 2).entropy_sum == Approx(6 * std::log(4.0)));
  CHECK(count(at::zeros({6, 4}), "relu:k=1", 2).entropy_sum == 0);
  // A saturated router has entropy 0, without 0 * infinity.
  const auto sure = at::tensor({300.0, 0.0, -300.0, 1.0}, at::kFloat).repeat({6, 1});
  CHECK(count(sure, "top1", 2).entropy_sum == 0);
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
  const auto total = route::sum_layers(values);
  CHECK(total.tokens == values[0].tokens);
  CHECK(total.sum.tokens == 2 * values[0].tokens);
  CHECK(total.sum.requests == values[0].requests + values[1].requests);
  CHECK(total.sum.padding == values[0].padding + values[1].padding);
  CHECK(total.sum.rows_sent == values[0].rows_sent + values[1].rows_sent);
  CHECK(total.sum.rank_dropped[1] == values[0].rank_dropped[1] + values[1].rank_dropped[1]);
  CHECK(total.sum.entropy_sum == Approx(values[0].entropy_sum + values[1].entropy_sum));
  CHECK(total.sum.rows() == values[0].rows() + values[1].rows());
  CHECK(total.sparsity == Approx((values[0].sparsity() + values[1].sparsity()) / 2));
  CHECK(total.worst_load ==
        std::max(values[0].load_max_over_mean(), values[1].load_max_over_mean()));
  CHECK(route::read_counters({}).empty());
  CHECK(route::sum_layers({}).sum.tokens == 0);
}

TEST_CASE("padding tokens are counted nowhere", "[route]") {
  std::mt19937 random(33);
  auto input = random_routing(random, 24, 4, 2);
  const auto few = route::route(input.logits.narrow(0, 0, 16), route::parse_router("top2+ir+fr"),
                                {{input.group.home.begin(), input.group.home.begin() + 16}, 2});
  std::fill(input.group.home.begin() + 16, input.group.home.end(), -1);
  const auto padded = route::route(input.logits, route::parse_router("top2+ir+fr"), input.group);
  const auto values = route::read_counters({few.counters, padded.counters});
  CHECK(values[0].tokens == 16);
  CHECK(words_of(values[0]) == words_of(values[1]));
  // f64 sums of the same 16 terms, in another order.
  CHECK(values[0].entropy_sum == Approx(values[1].entropy_sum).epsilon(1e-14));
}

TEST_CASE("a layer's JSON has every counter, a total no load", "[route]") {
  const auto logits = at::tensor({4.0, 1.0, 0.0, 0.0}, at::kFloat).repeat({4, 1});
  const auto values = count(logits, "top1+fr", 2);  // 2 tokens per rank, 1 slot per rank and expert
  const OrderedJson json = route::layers_json({6}, {values}, 64).at(0);
  CHECK(json["layer"] == 6);
  CHECK(json["requests"] == 4);
  CHECK(json["dropped_share"] == 0.5);
  CHECK(json["filled_share"] == 0.5);
  CHECK(json["unsuccessful_share"] == 0.5);
  CHECK(json["padding_share"] == 0.5);
  CHECK(json["dropped_per_rank"] == OrderedJson({1, 1}));
  CHECK(json["dropped_rank_max"] == 1);
  CHECK(json["dropped_rank_mean"] == 1.0);
  CHECK(json["ir_rank_max"] == 0);
  CHECK(json["rows_sent"] == 4);
  CHECK(json["bytes_sent"] == 512);
  CHECK(json["load"] == OrderedJson({2, 2, 0, 0}));
  const OrderedJson total = route::to_json(route::sum_layers({values, values}), 64);
  CHECK(total["tokens"] == 4);
  CHECK(total["requests"] == 8);
  CHECK(total["dead_experts"] == 4);
  CHECK(total["experts_per_token"] == json["experts_per_token"]);
  CHECK_FALSE(total.contains("load"));
  CHECK(route::routing_table({6}, {values}) ==
        "layer  drop %  unserved %  fill %  padding %  experts/token  load max/mean    dead  "
        "entropy\n"
        "6       50.00       50.00   50.00      50.00          1.000           2.00       2    "
        "0.355\n"
        "all     50.00       50.00   50.00      50.00          1.000           2.00       2    "
        "0.355\n");
}

}  // namespace moe::test
