#pragma once
// Reference routers (core/route/README.md) as plain loops over tokens, experts and ranks, in f64.
// Scores are an argument, so that ties are equal to those of the tested code.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/route/plan.h"
#include "core/route/router.h"

namespace moe::test {

using Matrix = std::vector<std::vector<double>>;  // [T][E]

struct ReferenceRow {
  int64_t expert, source_rank, token, choice, count;
  bool operator==(const ReferenceRow&) const = default;
};

struct ReferencePlan {
  std::vector<ReferenceRow> rows;            // by (expert, source rank, slot)
  std::vector<ReferenceRow> refused;         // of the first k choices, same order
  std::vector<std::vector<double>> weights;  // [T][E]
};

// Returns the experts of a token, best first; ties: lower index first.
inline std::vector<int64_t> ranked_experts(const std::vector<double>& logits) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  return order;
}

inline std::vector<double> softmax(const std::vector<double>& logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> result;
  double sum = 0;
  for (const double a : logits) {
    result.push_back(std::exp(a - highest));
    sum += result.back();
  }
  for (double& g : result) {
    g /= sum;
  }
  return result;
}

inline void sort_rows(std::vector<ReferenceRow>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.expert, a.source_rank) < std::pair(b.expert, b.source_rank);
  });
}

// Competition for one expert: the tokens of `rank` that request `expert` with one of `choices`, by
// descending score, then token index. Those beyond `capacity` are refused.
struct Competition {
  const Matrix& scores;
  const std::vector<int64_t>& source_rank;
  const std::vector<std::vector<int64_t>>& order;  // [T][E]

  void run(int64_t rank, int64_t expert, const std::vector<int64_t>& choices, int64_t capacity,
           std::vector<ReferenceRow>& accepted, std::vector<ReferenceRow>& refused) const {
    std::vector<ReferenceRow> requests;
    for (size_t token = 0; token < source_rank.size(); ++token) {
      for (const int64_t choice : choices) {
        if (source_rank[token] == rank && order[token][choice] == expert) {
          requests.push_back({expert, rank, static_cast<int64_t>(token), choice, 1});
        }
      }
    }
    std::stable_sort(requests.begin(), requests.end(), [&](const auto& a, const auto& b) {
      return scores[a.token][expert] > scores[b.token][expert];
    });
    int64_t free = capacity - std::count_if(accepted.begin(), accepted.end(), [&](const auto& row) {
                     return row.expert == expert && row.source_rank == rank;
                   });
    for (const auto& row : requests) {
      (free-- > 0 ? accepted : refused).push_back(row);
    }
  }
};

inline void reference_top_k(const Matrix& logits, const Matrix& scores,
                            const route::RouterSettings& s, const route::RoutingGroup& group,
                            const std::vector<double>& bias, ReferencePlan& plan) {
  const auto tokens = static_cast<int64_t>(logits.size());
  const auto experts = static_cast<int64_t>(logits[0].size());
  std::vector<std::vector<int64_t>> order;
  for (const auto& row : logits) {
    order.push_back(ranked_experts(row));
    if (!bias.empty()) {  // chosen by g + bias; equal sums: the higher logit first
      const std::vector<double> g = softmax(row);
      std::stable_sort(order.back().begin(), order.back().end(),
                       [&](int64_t a, int64_t b) { return g[a] + bias[a] > g[b] + bias[b]; });
    }
  }
  // Choices that compete with each other: one at a time, or the first k together.
  std::vector<std::vector<int64_t>> rounds;
  for (int64_t choice = 0; choice < s.k; ++choice) {
    if (rounds.empty() || s.slot_order == route::SlotOrder::kChoice) {
      rounds.emplace_back();
    }
    rounds.back().push_back(choice);
  }
  std::vector<ReferenceRow> fill_in_refused;
  const Competition competition{scores, group.source_rank, order};
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    const int64_t rank_tokens =
        std::count(group.source_rank.begin(), group.source_rank.end(), rank);
    const int64_t capacity = route::capacity_slots(s.capacity_factor, rank_tokens, experts);
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (const auto& round : rounds) {
        competition.run(rank, expert, round, capacity, plan.rows, plan.refused);
      }
      if (s.fr && s.k < experts) {
        competition.run(rank, expert, {s.k}, capacity, plan.rows, fill_in_refused);
      }
    }
  }
  const std::vector<ReferenceRow> accepted = plan.rows;
  for (int64_t token = 0; s.ir && token < tokens; ++token) {
    const int64_t served = std::count_if(accepted.begin(), accepted.end(),
                                         [&](const auto& row) { return row.token == token; });
    const int64_t source_rank = group.source_rank[token];
    if (source_rank < 0 || served >= s.k) {
      continue;
    }
    const int64_t local = experts / group.ranks;
    int64_t best = source_rank * local;
    for (int64_t expert = best; expert < (source_rank + 1) * local; ++expert) {
      best = logits[token][expert] > logits[token][best] ? expert : best;
    }
    plan.rows.push_back({best, source_rank, token, s.k + 1, s.k - served});
  }
}

// Every expert takes the tokens of each rank with its highest scores.
inline void reference_expert_choice(const Matrix& logits, const Matrix& scores,
                                    const route::RouterSettings& s,
                                    const route::RoutingGroup& group, ReferencePlan& plan) {
  const auto experts = static_cast<int64_t>(logits[0].size());
  std::vector<std::vector<int64_t>> order;
  for (const auto& row : logits) {
    order.push_back(ranked_experts(row));
  }
  std::vector<int64_t> choices(logits[0].size());
  std::iota(choices.begin(), choices.end(), 0);
  const Competition competition{scores, group.source_rank, order};
  std::vector<ReferenceRow> rest;
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    const int64_t tokens = std::count(group.source_rank.begin(), group.source_rank.end(), rank);
    const int64_t capacity = route::capacity_slots(s.capacity_factor, tokens, experts);
    for (int64_t expert = 0; expert < experts; ++expert) {
      competition.run(rank, expert, choices, capacity, plan.rows, rest);
    }
  }
}

inline void reference_selection(const Matrix& logits, const route::RouterSettings& s,
                                const route::RoutingGroup& group, ReferencePlan& plan) {
  for (size_t token = 0; token < logits.size(); ++token) {
    const std::vector<int64_t> order = ranked_experts(logits[token]);
    const std::vector<double> g = softmax(logits[token]);
    double mass = 0;
    for (int64_t choice = 0;
         group.source_rank[token] >= 0 && choice < static_cast<int64_t>(order.size()); ++choice) {
      const int64_t expert = order[choice];
      const bool wanted =
          s.family->name == "relu"
              ? logits[token][expert] > 0
              : (choice == 0 || mass < s.p) && choice < s.max_experts.value_or(choice + 1);
      if (!wanted) {
        break;
      }
      plan.rows.push_back(
          {expert, group.source_rank[token], static_cast<int64_t>(token), choice, 1});
      mass += g[expert];
    }
  }
}

// Returns the weights w [T][E] of the plan.
inline Matrix reference_weights(const Matrix& logits, const route::RouterSettings& s,
                                const ReferencePlan& plan) {
  const size_t experts = logits.empty() ? 0 : logits[0].size();
  Matrix weights(logits.size(), std::vector<double>(experts, 0));
  for (const auto& row : plan.rows) {
    weights[row.token][row.expert] += static_cast<double>(row.count);
  }
  for (size_t token = 0; token < logits.size(); ++token) {
    const std::vector<double> g = softmax(logits[token]);
    double highest = -1e300, sum = 0;
    for (size_t expert = 0; expert < experts; ++expert) {
      if (weights[token][expert] > 0) {
        highest = std::max(highest, logits[token][expert]);
      }
    }
    for (size_t expert = 0; expert < experts; ++expert) {
      double& w = weights[token][expert];
      if (s.family->name == "relu") {
        w *= std::max(0.0, logits[token][expert]);
      } else if (s.family->name == "topp" || s.family->name == "expert_choice" ||
                 s.gate_norm == route::GateNorm::kNone) {
        w *= g[expert];
      } else if (w > 0) {
        w *= std::exp(logits[token][expert] - highest);
        sum += w;
      }
    }
    for (double& w : weights[token]) {
      w = sum > 0 ? w / sum : w;
    }
  }
  return weights;
}

inline ReferencePlan reference_route(const Matrix& logits, const Matrix& scores,
                                     const route::RouterSettings& settings,
                                     const route::RoutingGroup& group,
                                     const std::vector<double>& bias = {}) {
  ReferencePlan plan;
  if (!logits.empty()) {
    if (settings.family->name == "topk") {
      reference_top_k(logits, scores, settings, group, bias, plan);
    } else if (settings.family->name == "expert_choice") {
      reference_expert_choice(logits, scores, settings, group, plan);
    } else {
      reference_selection(logits, settings, group, plan);
    }
  }
  sort_rows(plan.rows);
  sort_rows(plan.refused);
  plan.weights = reference_weights(logits, settings, plan);
  return plan;
}

}  // namespace moe::test
