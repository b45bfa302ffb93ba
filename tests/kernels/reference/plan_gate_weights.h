#pragma once
// Counts, weights and losses of a plan in double, and the gradient by the formulas of
// core/route/README.md.

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/ops/plan_gate_weights.h"

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
    const bool is_away = expert / (experts / plan.ranks) != plan.source_rank[token];
    kind += args.is_dropless && is_away ? kernels::kRemoteRow : 0;
    ++args.counted[plan.source_rank[token] * kernels::kRowKinds + kind];
  }
  args.counted[cells] = std::count(is_served.begin(), is_served.end(), true);
  double entropy = 0;
  for (int64_t t = 0; t < plan.tokens; ++t) {
    for (int64_t e = 0; plan.source_rank[t] < plan.ranks && e < experts; ++e) {
      const double score = args.scores[t * experts + e];
      entropy -= score > 0 ? score * std::log(score) : 0;
    }
  }
  args.counted[cells + 1] = std::bit_cast<int64_t>(entropy);
}

// Terms of the formulas, f64: g, w [T, E]; the balance's coefficient of g [T, E]; the share of each
// token in a mean over tokens and the logarithm of the softmax's sum [T, 1].
struct PlanTerms {
  at::Tensor g, w, coefficient, share, log_sum;

  PlanTerms(const kernels::PlanRows& plan, const kernels::GateOptions& options, const float* logits,
            const float* count, const int32_t* chosen) {
    const int64_t experts = plan.experts, ranks = plan.ranks;
    const at::Tensor a = in_f64(logits, {plan.tokens, experts});
    const at::Tensor n = in_f64(count, {plan.tokens, experts});
    g = at::softmax(a, 1);
    log_sum = a.logsumexp(1, /*keepdim=*/true);
    const at::Tensor best = at::where(n > 0, a, -1e300).amax(1, /*keepdim=*/true);
    const at::Tensor e = at::where(n > 0, n * at::exp(a - best.clamp_min(-1e30)), 0.0);
    w = options.normalise ? e / e.sum(1, /*keepdim=*/true).clamp_min(1e-300) : n * g;
    // One more row, for padding.
    const at::Tensor source_rank =
        at::from_blob(const_cast<int64_t*>(plan.source_rank), {plan.tokens}, at::kLong);
    const at::Tensor of_ranks =
        at::from_blob(const_cast<int32_t*>(chosen), {ranks * (experts + 1)}, at::kInt)
            .to(at::kDouble);
    const auto local_choice = [&](const at::Tensor& per_rank, double padding) {
      return at::cat({per_rank, at::full({1, per_rank.size(1)}, padding, at::kDouble)})
          .index_select(0, source_rank);
    };
    const at::Tensor counting =
        local_choice(of_ranks.narrow(0, 0, ranks * experts).view({ranks, -1}), 0);
    const at::Tensor tokens =
        local_choice(of_ranks.narrow(0, ranks * experts, ranks).view({ranks, 1}), 1);
    share = at::where(source_rank.unsqueeze(1) == ranks, 0.0,
                      1 / (tokens * static_cast<double>(options.ranks_in_use)));
    coefficient = counting / tokens * share * static_cast<double>(experts);
  }

  static at::Tensor in_f64(const float* values, at::IntArrayRef shape) {
    return at::from_blob(const_cast<float*>(values), shape, at::kFloat).to(at::kDouble);
  }
};

inline double share_of_row(const kernels::PlanRows& plan, const float* count, int64_t row) {
  const float n = count[plan.token[row] * plan.experts + plan.expert[row]];
  return static_cast<double>(plan.count[row]) / std::max(n, 1.0F);
}

inline void plan_gate_weights_reference(const kernels::PlanGateWeightsArgs& args) {
  const kernels::PlanRows& plan = args.plan;
  const int64_t experts = plan.experts;
  std::fill_n(args.chosen, plan.ranks * (experts + 1), 0);
  for (int64_t t = 0; t < plan.tokens; ++t) {
    for (int64_t c = 0; plan.source_rank[t] < plan.ranks && c < args.options.lb_choices; ++c) {
      ++args.chosen[plan.source_rank[t] * experts + args.by_logit[t * experts + c]];
    }
    if (plan.source_rank[t] < plan.ranks) {
      ++args.chosen[plan.ranks * experts + plan.source_rank[t]];
    }
  }
  const PlanTerms terms(plan, args.options, args.logits, args.count, args.chosen);
  at::from_blob(args.combine, {plan.tokens, experts}, at::kFloat).copy_(terms.w);
  *args.load_balance = (terms.coefficient * terms.g).sum().item<float>();
  *args.z = (terms.share * terms.log_sum.square()).sum().item<float>();
  for (int64_t row = 0; row < plan.rows; ++row) {
    const bool is_used = plan.expert[row] < experts;
    args.weights[row] =
        is_used ? static_cast<float>(args.combine[plan.token[row] * experts + plan.expert[row]] *
                                     share_of_row(plan, args.count, row))
                : 0.0F;
  }
}

inline void plan_gate_weights_backward_reference(const kernels::PlanGateWeightsBackwardArgs& args) {
  const kernels::PlanRows& plan = args.plan;
  const std::vector<int64_t> shape = {plan.tokens, plan.experts};
  const at::Tensor upstream = args.grad_combine == nullptr
                                  ? at::zeros(shape, at::kDouble)
                                  : PlanTerms::in_f64(args.grad_combine, shape);
  for (int64_t row = 0; args.grad_weights != nullptr && row < plan.rows; ++row) {
    if (plan.expert[row] < plan.experts) {
      upstream.data_ptr<double>()[plan.token[row] * plan.experts + plan.expert[row]] +=
          args.grad_weights[row] * share_of_row(plan, args.count, row);
    }
  }
  const double of_balance = args.grad_load_balance != nullptr ? *args.grad_load_balance : 0;
  const double of_z = args.grad_z != nullptr ? *args.grad_z : 0;
  const PlanTerms terms(plan, args.options, args.logits, args.count, args.chosen);
  const auto& [g, w, coefficient, share, log_sum] = terms;
  const bool through_all = args.options.straight_through || !args.options.normalise;
  const auto sum = [](const at::Tensor& x) { return x.sum(1, /*keepdim=*/true); };
  at::from_blob(args.grad_logits, shape, at::kFloat)
      .copy_(w * upstream - (through_all ? g : w) * sum(w * upstream) +
             of_balance * g * (coefficient - sum(coefficient * g)) +
             2 * of_z * share * log_sum * g);
}

}  // namespace moe::test
