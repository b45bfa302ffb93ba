#pragma once
// Combine weights: the differentiable half of routing. The plan is constant; gradients reach the
// logits only through here (and the auxiliary losses). T tokens, E experts.

#include <ATen/ATen.h>

#include "core/route/rows.h"

namespace moe::route {

// [T, E] in the dtype of the logits: how many times each expert stands in a token's sum (1, m, 1 +
// m).
at::Tensor multiplicities(const RouteInput& input, const Plan& plan);

// w [T, E] of softmax routers. `count` [T, E] are multiplicities n, constant.
//   normalise:  w_ij = n_ij e^{a_ij} / sum_l n_il e^{a_il}, a row of zeros where n is; computed
//   from
//               logits, so that it stays finite when probabilities underflow
//               (Rectify-Router, Eq. 2 and 3)
//   otherwise:  w_ij = n_ij g_ij, g = softmax(a)
//               (top-p routing, Eq. 5; gate=none; expert choice)
// Gradient, with U = dL/dw (README.md, "Gradients"; no division):
//   straight_through or not normalise:  dL/da_il = w_il U_il - g_il sum_j w_ij U_ij
//   otherwise:                          dL/da_il = w_il U_il - w_il sum_j w_ij U_ij
at::Tensor softmax_gates(const at::Tensor& logits, const at::Tensor& count, bool normalise,
                         bool straight_through);

// w_ij = n_ij max(0, a_ij) (ReMoE).
at::Tensor relu_gates(const at::Tensor& logits, const at::Tensor& count);

// [rows_max] the weight of each row of the plan: w of its token and expert, shared out by
// multiplicity where two rows of the plan name the same pair. 0 for unused rows.
at::Tensor row_weights(const at::Tensor& combine, const at::Tensor& count, const RouteInput& input,
                       const Plan& plan);

}  // namespace moe::route
