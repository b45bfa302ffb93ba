#pragma once
// Auxiliary losses, returned and never stored: of one micro-batch, the mean over the ranks that
// hold tokens (README.md, "Losses are grouped by home rank"). Unscaled by coefficients. Undefined
// tensors stand for losses a router does not have. T tokens, E experts.

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "core/route/rule.h"

namespace moe::route {

struct AuxLosses {
  at::Tensor load_balance;  // scalar f32 with gradient
  at::Tensor entropy;       // scalar f32 with gradient (top-p)
  at::Tensor l1;            // scalar f32 with gradient (ReLU)
  // Only where they are asked for (RoutingGroup): the z-loss of softmax routers, and balance within
  // sequences of routers that have a load-balance loss, which is the mean over the sequences.
  at::Tensor z, sequence_balance;
  AuxLosses& operator+=(const AuxLosses& other);  // sum over MoE layers
};

inline constexpr std::array kAllLosses = {&AuxLosses::load_balance, &AuxLosses::entropy,
                                          &AuxLosses::l1, &AuxLosses::z,
                                          &AuxLosses::sequence_balance};

// Each takes the logits [T, E] with their gradient and is 0 without tokens.

// E sum_j f_j Q_j: f_j = share of the rank's tokens that count expert j, Q_j = its mean
// probability. `counted` [T, E] of 0 and 1 says which experts a token counts; it is a constant.
at::Tensor load_balance_loss(const at::Tensor& logits, const RouteInput& input,
                             const at::Tensor& counted);

// [T, E] of 0 and 1: the first `choices` experts of every token by its logits, whatever a bias made
// of the choice and capacity of the requests.
at::Tensor first_choices(const RouteInput& input, int64_t choices);

// Mean over tokens of -sum_j P_ij ln P_ij (top-p routing, Eq. 7).
at::Tensor entropy_loss(const at::Tensor& logits, const RouteInput& input);

// Mean over tokens of (ln sum_j e^{a_ij})^2 (ST-MoE, Eq. 5).
at::Tensor z_loss(const at::Tensor& logits, const RouteInput& input);

// The mean over sequences of E sum_j f_j Q_j within each: f_j = share of its selections that are of
// expert j, Q_j = its mean probability (DeepSeek-V3, Eq. 17 to 20). `counted` as above, every
// expert that a token selects. The input has sequences.
at::Tensor sequence_balance_loss(const at::Tensor& logits, const RouteInput& input,
                                 const at::Tensor& counted);

// sum_j f_j mean_i R_ij, R = max(0, a): f_j = E / (k T) #{i : R_ij > 0} (refined), or 1 (plain).
// `count` [T, E] are the multiplicities of the plan.
at::Tensor l1_loss(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                   const RouterSettings& settings);

// The coefficient of L1 in the next step: raised while the model is too dense, lowered otherwise
// (equality lowers). `target_sparsity` = 1 - k / E.
double next_lambda(double lambda, double sparsity, double target_sparsity, double multiplier);

// Balance without a loss (Wang et al. 2024, Algorithm 1): after a step the bias [E] of an expert
// that fewer than the mean of `requests` [E] chose rises by `rate`, that of one which more chose
// falls.
void move_bias(at::Tensor bias, const std::vector<int64_t>& requests, double rate);

}  // namespace moe::route
