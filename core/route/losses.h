#pragma once
// Auxiliary losses, returned and never stored (SPEC sections 7, 8, 9; grouped and reduced as D11:
// mean over the ranks that hold tokens, one micro-batch). Unscaled by coefficients. Undefined
// tensors stand for losses a router has not. T tokens, E experts.

#include <ATen/ATen.h>

#include "core/route/rule.h"

namespace moe::route {

struct AuxLosses {
  at::Tensor load_balance;                        // scalar f32 with gradient
  at::Tensor entropy;                             // scalar f32 with gradient (top-p)
  at::Tensor l1;                                  // scalar f32 with gradient (ReLU)
  AuxLosses& operator+=(const AuxLosses& other);  // sum over MoE layers
};

// Each takes the logits [T, E] with their gradient and the constant multiplicities `count` [T, E]
// of the plan; all are 0 without tokens.

// E sum_j f_j Q_j: f_j = share of the rank's tokens that count expert j (a constant), Q_j = its
// mean probability. lb=first counts first choices, before capacity; lb=selected the k requests of
// top-k, the chosen set of top-p (D10).
at::Tensor load_balance_loss(const at::Tensor& logits, const RouteInput& input,
                             const at::Tensor& count, const RouterSettings& settings);

// Mean over tokens of -sum_j P_ij ln P_ij (P2 Eq. 7).
at::Tensor entropy_loss(const at::Tensor& logits, const RouteInput& input);

// sum_j f_j mean_i R_ij, R = max(0, a): f_j = E / (k T) #{i : R_ij > 0} (refined), or 1 (plain).
at::Tensor l1_loss(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                   const RouterSettings& settings);

// SPEC section 9: the coefficient of the next step; raised while the model is too dense, lowered
// otherwise (equality lowers). `target_sparsity` = 1 - k / E.
double next_lambda(double lambda, double sparsity, double target_sparsity, double multiplier);

}  // namespace moe::route
