#pragma once
// Counts, weights and losses of a plan as plain loops in double, and the gradient as the formulas
// of core/route/README.md have it.

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/ops/plan_weights.h"

namespace moe::test {

inline void plan_counts_reference(const kernels::PlanCountsArgs& args) {
  const kernels::PlanRows& plan = args.plan;
  const int64_t experts = plan.experts, cells = (plan.ranks + 1) * kernels::kRowKinds;
  std::fill_n(args.count, plan.tokens * experts, 0.0F);
  std::fill_n(args.counted, cells + 2, 0);
  std::vector<bool> is_served(static_cast<size_t>(plan.tokens));
  for (int64_t row = 0; row < plan.rows; ++row) {
    const int64_t token = plan.token[row], expert = plan.expert[row];
    if (expert == experts) {
      continue;
    }
    is_served[static_cast<size_t>(token)] = true;
    args.count[token * experts + expert] += static_cast<float>(plan.count[row]);
    int64_t kind = plan.choice[row] < plan.k    ? kernels::kAcceptedRow
                   : plan.choice[row] == plan.k ? kernels::kFilledRow
                                                : kernels::kRectifiedRow;
    if (args.rectifies && kind == kernels::kRectifiedRow && plan.count[row] == plan.k) {
      kind = kernels::kRectifiedAloneRow;
    }
    const bool is_away = expert / (experts / plan.ranks) != plan.home[token];
    kind += args.dropless && is_away ? kernels::kRemoteRow : 0;
    ++args.counted[plan.home[token] * kernels::kRowKinds + kind];
  }
  args.counted[cells] = std::count(is_served.begin(), is_served.end(), true);
  double entropy = 0;
  for (int64_t t = 0; t < plan.tokens; ++t) {
    for (int64_t e = 0; plan.home[t] < plan.ranks && e < experts; ++e) {
      const double score = args.scores[t * experts + e];
      entropy -= score > 0 ? score * std::log(score) : 0;
    }
  }
  args.counted[cells + 1] = std::bit_cast<int64_t>(entropy);
}

// What one token's formulas are made of.
struct WeighedToken {
  std::vector<double> g, w, coefficient;  // [E]; the last is what the balance multiplies g by
  double log_sum = 0, share = 0;          // share: of the token in a mean over tokens
};

inline WeighedToken weighed_token(const kernels::PlanRows& plan,
                                  const kernels::PlanWeightsKind& kind, const float* logits,
                                  const float* count, const int32_t* chosen, int64_t t) {
  const int64_t experts = plan.experts, home = plan.home[t];
  const float* a = logits + t * experts;
  const float* n = count + t * experts;
  WeighedToken token;
  const double highest = *std::max_element(a, a + experts);
  double sum = 0, selected = 0, best = -INFINITY;
  for (int64_t e = 0; e < experts; ++e) {
    sum += std::exp(a[e] - highest);
    best = n[e] > 0 ? std::max<double>(best, a[e]) : best;
  }
  for (int64_t e = 0; e < experts; ++e) {
    selected += n[e] > 0 ? n[e] * std::exp(a[e] - best) : 0;
  }
  token.log_sum = highest + std::log(sum);
  const bool is_padding = home == plan.ranks;
  const double tokens = is_padding ? 1 : chosen[plan.ranks * experts + home];
  token.share = is_padding ? 0 : 1 / (tokens * static_cast<double>(kind.ranks_in_use));
  for (int64_t e = 0; e < experts; ++e) {
    const double g = std::exp(a[e] - highest) / sum;
    const double counting = is_padding ? 0 : chosen[home * experts + e];
    token.g.push_back(g);
    token.w.push_back(!kind.normalise ? n[e] * g
                      : n[e] > 0      ? n[e] * std::exp(a[e] - best) / selected
                                      : 0);
    token.coefficient.push_back(static_cast<double>(experts) * counting / tokens * token.share);
  }
  return token;
}

inline double share_of_row(const kernels::PlanRows& plan, const float* count, int64_t row) {
  const float n = count[plan.token[row] * plan.experts + plan.expert[row]];
  return static_cast<double>(plan.count[row]) / std::max(n, 1.0F);
}

inline void plan_weights_reference(const kernels::PlanWeightsArgs& args) {
  const kernels::PlanRows& plan = args.plan;
  const int64_t experts = plan.experts;
  std::fill_n(args.chosen, plan.ranks * (experts + 1), 0);
  for (int64_t t = 0; t < plan.tokens; ++t) {
    for (int64_t c = 0; plan.home[t] < plan.ranks && c < args.kind.lb_choices; ++c) {
      ++args.chosen[plan.home[t] * experts + args.by_logit[t * experts + c]];
    }
    if (plan.home[t] < plan.ranks) {
      ++args.chosen[plan.ranks * experts + plan.home[t]];
    }
  }
  double balance = 0, z = 0;
  for (int64_t t = 0; t < plan.tokens; ++t) {
    const auto token = weighed_token(plan, args.kind, args.logits, args.count, args.chosen, t);
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      args.combine[t * experts + e] = static_cast<float>(token.w[at]);
      balance += token.coefficient[at] * token.g[at];
    }
    z += token.share * token.log_sum * token.log_sum;
  }
  *args.load_balance = static_cast<float>(balance);
  *args.z = static_cast<float>(z);
  for (int64_t row = 0; row < plan.rows; ++row) {
    const bool is_used = plan.expert[row] < experts;
    args.weights[row] =
        is_used ? static_cast<float>(args.combine[plan.token[row] * experts + plan.expert[row]] *
                                     share_of_row(plan, args.count, row))
                : 0.0F;
  }
}

inline void plan_weights_backward_reference(const kernels::PlanWeightsBackwardArgs& args) {
  const kernels::PlanRows& plan = args.plan;
  const int64_t experts = plan.experts;
  std::vector<double> upstream(static_cast<size_t>(plan.tokens * experts));
  for (size_t i = 0; args.grad_combine != nullptr && i < upstream.size(); ++i) {
    upstream[i] = args.grad_combine[i];
  }
  for (int64_t row = 0; args.grad_weights != nullptr && row < plan.rows; ++row) {
    if (plan.expert[row] < experts) {
      upstream[static_cast<size_t>(plan.token[row] * experts + plan.expert[row])] +=
          args.grad_weights[row] * share_of_row(plan, args.count, row);
    }
  }
  const double of_balance = args.grad_load_balance != nullptr ? *args.grad_load_balance : 0;
  const double of_z = args.grad_z != nullptr ? *args.grad_z : 0;
  const bool through_all = args.kind.straight_through || !args.kind.normalise;
  for (int64_t t = 0; t < plan.tokens; ++t) {
    const auto token = weighed_token(plan, args.kind, args.logits, args.count, args.chosen, t);
    double all = 0, mean = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      all += token.w[at] * upstream[static_cast<size_t>(t * experts) + at];
      mean += token.coefficient[at] * token.g[at];
    }
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      const double basis = through_all ? token.g[at] : token.w[at];
      args.grad_logits[t * experts + e] = static_cast<float>(
          token.w[at] * upstream[static_cast<size_t>(t * experts) + at] - basis * all +
          of_balance * token.g[at] * (token.coefficient[at] - mean) +
          of_z * 2 * token.share * token.log_sum * token.g[at]);
    }
  }
}

}  // namespace moe::test
