// Counters against plain loops, their sums over layers, and their JSON and table.

#include "core/route/counters.h"

#include <algorithm>
#include <map>

#include "tests/core/route/random_routing.h"

namespace moe::test {
namespace {

route::CounterValues count(const at::Tensor& logits, const route::RouterSettings& router,
                           const route::RoutingGroup& group) {
  return route::read_counters({route::route(logits, router, group).counters})[0];
}

route::CounterValues count(const at::Tensor& logits, const char* router, int64_t ranks) {
  return count(logits, route::parse_router(router), route::partition_tokens(logits.size(0), ranks));
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
      if (input.group.source_rank[token] >= 0) {
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
      ++values.rank_dropped[row.source_rank];
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
  bool has_requests() const { return settings.family->has_token_requests; }
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
    const std::vector<int64_t> order = ranked_experts(logits);
    for (int64_t choice = 0; settings.bias_rate && choice < settings.k; ++choice) {
      ++values.requests_per_expert[order[choice]];
    }
  }

  void add_row(const ReferenceRow& row) {
    const int64_t kind = row.choice < k() ? 0 : row.choice == k() ? 1 : 2;
    ++rows_of_token[row.token][kind];
    ++values.tokens_per_expert[row.expert];
    values.requests += has_requests() ? 0 : 1;
    values.fr_filled += kind == 1;
    values.ir_tokens += kind == 2;
    values.rank_ir[row.source_rank] += kind == 2;
    values.slots_used += has_slots() && kind < 2;
    const int64_t owner = row.expert / (experts / input.group.ranks);
    values.rows_sent += !has_buffers() && owner != row.source_rank;
  }

  void add_slots() {
    for (int64_t rank = 0; rank < input.group.ranks; ++rank) {
      const int64_t tokens =
          std::count(input.group.source_rank.begin(), input.group.source_rank.end(), rank);
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

TEST_CASE("counters equal plain loops, for every router on random groups", "[route]") {
  std::mt19937 random(30);
  int64_t empty_experts = 0, dropped_tokens = 0, sent = 0;
  for (int round = 0; round < 8; ++round) {
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
      const auto used = used_rows(routing.plan, input.group, experts);
      REQUIRE(rows.size() == input.group.source_rank.size());
      for (size_t token = 0; token < rows.size(); ++token) {
        const auto found = slow.rows_of_token.find(static_cast<int64_t>(token));
        const auto expected =
            found == slow.rows_of_token.end() ? std::array<int64_t, 3>{} : found->second;
        std::vector<double> all(expected.begin(), expected.end());
        all.resize(3 + static_cast<size_t>(experts));
        for (const auto& row : used) {
          all[3 + static_cast<size_t>(row.expert)] += row.token == static_cast<int64_t>(token);
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

TEST_CASE("counters of a uniform router show its entropy", "[route]") {
  CHECK(count(at::zeros({6, 4}), "top1", 2).entropy_sum == Approx(6 * std::log(4.0)));
  CHECK(count(at::zeros({6, 4}), "relu:k=1", 2).entropy_sum == 0);
  // A saturated router has entropy 0, without 0 * infinity.
  const auto sure = at::tensor({300.0, 0.0, -300.0, 1.0}, at::kFloat).repeat({6, 1});
  CHECK(count(sure, "top1", 2).entropy_sum == 0);
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

TEST_CASE("the JSON of a layer has all counters, that of a total no load", "[route]") {
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
