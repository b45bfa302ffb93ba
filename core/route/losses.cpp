// All are a constant coefficient times something differentiable of each token, summed: what a rank
// or a sequence counts is folded into the coefficient, so no loop over them is needed.

#include "core/route/losses.h"

#include <ATen/core/grad_mode.h>

#include <numeric>

#include "core/base/error.h"

namespace moe::route {
namespace {

void add(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined()) {
    sum = sum.defined() ? sum + term : term;
  }
}

// [W + 1]: sums of `values` [T] or [T, E] over the tokens of each rank, padding last.
at::Tensor sum_by_rank(const RouteInput& input, const at::Tensor& values) {
  auto shape = values.sizes().vec();
  shape[0] = input.ranks + 1;
  return at::zeros(shape, values.options()).index_add_(0, input.home, values);
}

// What one token weighs in a mean over ranks of means over tokens: 1 / (T_r ranks with tokens), 0
// for padding. And T_r of its own rank.
struct TokenWeight {
  at::Tensor weight;       // [T]
  at::Tensor rank_tokens;  // [T]
};

TokenWeight token_weight(const RouteInput& input) {
  const at::Tensor by_rank = sum_by_rank(input, at::ones({input.tokens()}, input.logits.options()));
  const at::Tensor ranks =
      (by_rank.narrow(0, 0, input.ranks) > 0).sum().clamp_min(1).to(by_rank.scalar_type());
  const at::Tensor rank_tokens = by_rank.index_select(0, input.home);
  return {(input.home < input.ranks).to(by_rank.scalar_type()) / (rank_tokens * ranks),
          rank_tokens};
}

// [T, E]: for each token the share of its rank's tokens that `counted` [T, E] counts for an expert.
at::Tensor fractions(const RouteInput& input, const at::Tensor& counted,
                     const at::Tensor& rank_tokens) {
  return sum_by_rank(input, counted).index_select(0, input.home) / rank_tokens.unsqueeze(1);
}

}  // namespace

AuxLosses& AuxLosses::operator+=(const AuxLosses& other) {
  for (const auto loss : kAllLosses) {
    add(this->*loss, other.*loss);
  }
  return *this;
}

at::Tensor first_choices(const RouteInput& input, int64_t choices) {
  return at::zeros_like(input.logits).scatter_(1, input.by_logit.narrow(1, 0, choices), 1);
}

at::Tensor load_balance_loss(const at::Tensor& logits, const RouteInput& input,
                             const at::Tensor& counted) {
  const TokenWeight tokens = token_weight(input);
  const at::Tensor coefficient = static_cast<double>(input.experts()) *
                                 fractions(input, counted, tokens.rank_tokens) *
                                 tokens.weight.unsqueeze(1);
  return (coefficient * at::softmax(logits, 1)).sum();
}

at::Tensor entropy_loss(const at::Tensor& logits, const RouteInput& input) {
  const at::Tensor log_probabilities = at::log_softmax(logits, 1);
  const at::Tensor entropy = -(log_probabilities.exp() * log_probabilities).sum(1);
  return (token_weight(input).weight * entropy).sum();
}

at::Tensor z_loss(const at::Tensor& logits, const RouteInput& input) {
  return (token_weight(input).weight * at::logsumexp(logits, 1).square()).sum();
}

at::Tensor sequence_balance_loss(const at::Tensor& logits, const RouteInput& input,
                                 const at::Tensor& counted) {
  const at::Tensor is_valid = (input.home < input.ranks).to(logits.scalar_type());  // [T]
  const at::Tensor selections = at::zeros({input.sequences, input.experts()}, counted.options())
                                    .index_add_(0, input.sequence, counted * is_valid.unsqueeze(1));
  const at::Tensor tokens =
      at::zeros({input.sequences}, is_valid.options()).index_add_(0, input.sequence, is_valid);
  const at::Tensor fractions = selections / selections.sum(1, /*keepdim=*/true).clamp_min(1);
  const at::Tensor nonempty = (tokens > 0).sum().clamp_min(1);
  const at::Tensor weight =
      is_valid / (tokens.index_select(0, input.sequence).clamp_min(1) * nonempty);  // [T]
  const at::Tensor coefficient = static_cast<double>(input.experts()) *
                                 fractions.index_select(0, input.sequence) * weight.unsqueeze(1);
  return (coefficient * at::softmax(logits, 1)).sum();
}

at::Tensor l1_loss(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                   const RouterSettings& settings) {
  const TokenWeight tokens = token_weight(input);
  at::Tensor coefficient = tokens.weight.unsqueeze(1);
  if (settings.l1 == L1Weights::kRefined) {
    const double scale = static_cast<double>(input.experts()) / static_cast<double>(settings.k);
    coefficient = coefficient * scale *
                  fractions(input, (count > 0).to(count.scalar_type()), tokens.rank_tokens);
  }
  return (coefficient * at::relu(logits)).sum();
}

double next_lambda(double lambda, double sparsity, double target_sparsity, double multiplier) {
  return sparsity < target_sparsity ? lambda * multiplier : lambda / multiplier;
}

void move_bias(at::Tensor bias, const std::vector<int64_t>& requests, double rate) {
  const at::NoGradGuard no_grad;
  const auto experts = static_cast<int64_t>(requests.size());
  MOE_CHECK(bias.numel() == experts, "a bias of {} experts, requests of {}", bias.numel(), experts);
  const int64_t sum = std::accumulate(requests.begin(), requests.end(), int64_t{0});
  std::vector<float> moves;
  for (const int64_t load : requests) {  // E times mean and load: whole numbers
    const int64_t below = sum - experts * load;
    moves.push_back(static_cast<float>(below > 0 ? rate : below < 0 ? -rate : 0));
  }
  bias += at::tensor(moves, at::kFloat).to(bias.device());
}

}  // namespace moe::route
