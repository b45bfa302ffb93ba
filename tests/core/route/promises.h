#pragma once
// Properties of every router: rows unique and sorted, load within capacity, every request in a row
// or in the overflow, padding not routed, weights finite, equal plans for equal inputs.

#include <map>
#include <set>
#include <tuple>

#include "tests/core/route/random_routing.h"

namespace moe::test {

// Checks that rows are ordered by (expert, home), with each (token, expert) once, plus once by IR.
inline void check_rows_are_sorted_and_unique(const std::vector<ReferenceRow>& rows, int64_t k) {
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK((i == 0 || std::pair(rows[i - 1].expert, rows[i - 1].home) <=
                         std::pair(rows[i].expert, rows[i].home)));
    CHECK(seen.emplace(rows[i].token, rows[i].expert, rows[i].choice > k).second);
    CHECK(rows[i].count >= 1);
  }
}

inline void check_load_within_capacity(const route::Routing& routing,
                                       const std::vector<ReferenceRow>& rows) {
  std::map<std::pair<int64_t, int64_t>, int64_t> load;
  for (const auto& row : rows) {
    if (row.choice <= routing.input.k) {
      const int64_t taken = ++load[{row.home, row.expert}];
      CHECK(taken <= routing.input.capacity.at(row.home));
    }
  }
}

// Checks that each of the first k choices of each valid token is in exactly one row or overflow
// entry.
inline void check_nothing_is_lost(const route::Routing& routing, const route::RoutingGroup& group,
                                  std::vector<ReferenceRow> rows) {
  const auto refused = refused_rows(routing.plan, group, routing.input.experts());
  rows.insert(rows.end(), refused.begin(), refused.end());
  std::multiset<std::tuple<int64_t, int64_t, int64_t>> asked, stands;
  const auto ranked = matrix_of(routing.input.experts_by_choice);
  for (int64_t token = 0; token < routing.input.tokens(); ++token) {
    for (int64_t choice = 0; group.home[token] >= 0 && choice < routing.input.k; ++choice) {
      asked.emplace(token, choice, static_cast<int64_t>(ranked[token][choice]));
    }
  }
  for (const auto& row : rows) {
    if (row.choice < routing.input.k) {
      stands.emplace(row.token, row.choice, row.expert);
    }
  }
  CHECK((asked == stands));
}

inline void check_promises(const at::Tensor& logits, const route::RouterSettings& settings,
                           const route::RoutingGroup& group) {
  const route::Routing routing = route::route(logits, settings, group);
  const int64_t experts = logits.size(1);
  const auto rows = used_rows(routing.plan, group, experts);
  check_rows_are_sorted_and_unique(rows, routing.input.k);
  std::vector<int64_t> load(experts, 0);
  for (const auto& row : rows) {
    CHECK(group.home.at(row.token) >= 0);
    ++load[row.expert];
  }
  CHECK(load == numbers_of(routing.plan.rows));
  if (settings.family->has_slots) {
    check_load_within_capacity(routing, rows);
  }
  if (settings.family->tokens_request) {
    check_nothing_is_lost(routing, group, rows);
  }
  CHECK(at::isfinite(routing.combine).all().item<bool>());
  CHECK(routing.combine.min().item<double>() >= 0);

  const route::Routing again = route::route(logits, settings, group);
  CHECK(at::equal(again.plan.token, routing.plan.token));
  CHECK(at::equal(again.plan.expert, routing.plan.expert));
  CHECK(at::equal(again.weights, routing.weights));
}

}  // namespace moe::test
