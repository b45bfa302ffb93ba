#include "core/route/decisions.h"

#include <algorithm>

#include "core/route/rows.h"

namespace moe::route {
Decisions decisions_of(const RouteInput& input, const Plan& plan) {
  const int64_t experts = input.experts(), k = input.k;
  const auto home = to_host(input.home);
  Decisions result;
  result.slots.assign(input.ranks, std::vector<Decisions::List>(experts));
  result.accepted.resize(input.tokens());

  const auto token = to_host(plan.token), expert = to_host(plan.expert);
  const auto choice = to_host(plan.choice), count = to_host(plan.count);
  std::vector<Decisions::List> by_choice;  // [token, choice, expert]
  for (size_t row = 0; row < token.size() && expert[row] < experts; ++row) {
    if (choice[row] > k) {
      result.ir.push_back({token[row], expert[row], count[row]});
      continue;
    }
    if (choice[row] == k) {
      result.fr_filled.push_back({token[row], expert[row]});
    }
    result.slots[home[token[row]]][expert[row]].push_back(token[row]);
    by_choice.push_back({token[row], choice[row], expert[row]});
  }
  std::sort(by_choice.begin(), by_choice.end());
  for (const auto& row : by_choice) {
    result.accepted[row[0]].push_back(row[2]);
  }

  const auto refused_token = to_host(plan.overflow_token);
  const auto refused_expert = to_host(plan.overflow_expert);
  const auto refused_choice = to_host(plan.overflow_choice);
  for (size_t row = 0; row < refused_token.size() && refused_expert[row] < experts; ++row) {
    result.drops.push_back({refused_token[row], refused_choice[row] + 1, refused_expert[row]});
  }
  for (auto* list : {&result.drops, &result.fr_filled, &result.ir}) {
    std::sort(list->begin(), list->end());
  }
  return result;
}

}  // namespace moe::route
