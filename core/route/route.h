#pragma once
// Routing of a group of tokens: computes plan, gate weights, auxiliary losses and counters from
// logits. Gradients flow through the gates and the losses only. Top-k routers also have fused
// kernels (routers/top_k.cpp), which are tested against the rules (plan.h).
//
// T tokens, E experts, W logical ranks.

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "core/route/counters.h"
#include "core/route/plan.h"
#include "core/route/router.h"

namespace moe::route {

// Sums over the tokens of one layer, from which a balance loss follows: the sum over experts of
// balance_factors() times `scores`, over the number of tokens.
struct BalanceSums {
  at::Tensor counted;  // [E] f64, number of tokens that count the expert, without gradient
  at::Tensor scores;   // [E] f64, sum of the probabilities (ReLU: of max(0, a)), with gradient
};

// Auxiliary losses of one micro-batch: scalars f32 (f64 for f64 logits) with gradient, not
// multiplied by coefficients. A loss that the router does not have is undefined. sequence_balance
// is the mean over sequences; each other loss is the mean over the ranks that have tokens
// (README.md, "Losses are grouped by source rank"), or with RouteInput::sum_losses a sum over
// tokens.
struct AuxLosses {
  at::Tensor load_balance;
  at::Tensor entropy;  // top-p
  at::Tensor l1;       // ReLU
  // z: of softmax routers, if RoutingGroup::compute_z_loss. sequence_balance: of routers with
  // load_balance, if RoutingGroup::sequence is set.
  at::Tensor z, sequence_balance;
  BalanceSums balance = {};  // in place of load_balance or l1, with RouteInput::sum_losses
  AuxLosses& operator+=(const AuxLosses& other);  // sum over MoE layers, except of `balance`
};

inline constexpr std::array kAllLosses = {&AuxLosses::load_balance, &AuxLosses::entropy,
                                          &AuxLosses::l1, &AuxLosses::z,
                                          &AuxLosses::sequence_balance};

struct Routing {
  RouteInput input;
  Plan plan;
  // f32, or f64 for f64 logits:
  at::Tensor count;    // [T, E], multiplicities(), without gradient
  at::Tensor combine;  // [T, E], weights w with gradient: y_i = sum_j w_ij E_j(x_i)
  at::Tensor weights;  // [rows_max], row_weights() with gradient
  AuxLosses losses;
  Counters counters;
};

// Routes `logits` [T, E] f32 or f64 (with gradient). `bias` [E] as in make_input(). Copies nothing
// to the host. Requires settings that pass check_router() for E experts.
Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group,
              const at::Tensor& bias = {});

// Recomputes gates and losses from `logits` with the plan of `saved`, for activation checkpointing:
// a token must not change experts if recomputed logits differ by rounding.
Routing recompute_gates(const at::Tensor& logits, const Routing& saved,
                        const RouterSettings& settings);

// Tensor functions of a router family.
struct RouterFunctions {
  // Returns the scores [T, E] that are compared between tokens (RouteInput::scores).
  at::Tensor (*scores)(const at::Tensor& logits);
  std::vector<Rule> (*rules)(const RouterSettings& settings);
  // Returns the weights w [T, E] with gradient. `count` is Routing::count.
  at::Tensor (*gates)(const at::Tensor& logits, const at::Tensor& count,
                      const RouterSettings& settings);
  AuxLosses (*losses)(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                      const RouterSettings& settings) = nullptr;
  // Fused kernels for f32 logits, or nullptr. fused_plan sets plan, count and counters of
  // `routing`, with the results of the rules. fused_gate_weights sets combine, weights and losses.
  void (*fused_plan)(const RouterSettings& settings, Routing& routing) = nullptr;
  void (*fused_gate_weights)(const at::Tensor& logits, const RouterSettings& settings,
                             Routing& routing) = nullptr;
};

const RouterFunctions& router_functions(const RouterSettings& settings);

// Adds a router to those of routers/all.h, for programs that link this library. Call it before any
// other function of this library and before threads start.
void add_router(RouterFamily family, const RouterFunctions& functions);

// ----------------------------------------------------------------------------------------- gates

// Returns g = softmax(a) [T, E].
at::Tensor softmax_scores(const at::Tensor& logits);

// Returns the multiplicities n [T, E] in the dtype of the logits: 1 for an expert that accepted the
// token, plus m for the expert of an IR row of multiplicity m, else 0.
at::Tensor multiplicities(const RouteInput& input, const Plan& plan);

// Returns the weights w [T, E] of softmax routers; `count` [T, E] holds the multiplicities n.
//   normalise:  w_ij = n_ij e^{a_ij} / sum_l n_il e^{a_il}, 0 for tokens without experts
//               (Rectify-Router, Eq. 2, 3). Computed from logits, because probabilities underflow.
//   otherwise:  w_ij = n_ij g_ij (top-p routing, Eq. 5; gate=none; expert choice)
// Gradient with U = dL/dw (README.md, "Gradients"):
//   straight_through or not normalise:  dL/da_il = w_il U_il - g_il sum_j w_ij U_ij
//   otherwise:                          dL/da_il = w_il U_il - w_il sum_j w_ij U_ij
at::Tensor softmax_gates(const at::Tensor& logits, const at::Tensor& count, bool normalise,
                         bool straight_through);

// RouterFunctions::gates of unnormalised probabilities: w_ij = n_ij g_ij.
at::Tensor probability_gates(const at::Tensor& logits, const at::Tensor& count,
                             const RouterSettings& settings);

// Returns the weight of each row of the plan, [rows_max]; 0 for unused rows. w_ij is divided
// between two rows of one token and expert in proportion to their multiplicities.
at::Tensor row_weights(const at::Tensor& combine, const at::Tensor& count, const RouteInput& input,
                       const Plan& plan);

// ---------------------------------------------------------------------------------------- losses
// Losses of logits [T, E], differentiable in them; 0 without tokens. A loss "per rank" is
// computed for the tokens of each rank and averaged over the ranks that have tokens.

// Sets load_balance to, per rank, E sum_j f_j Q_j with f_j = the share of tokens with counted[i, j]
// = 1 and Q_j = the mean probability of expert j; or sets `balance`. counted [T, E] is 0 or 1.
void add_load_balance_loss(AuxLosses& losses, const at::Tensor& logits, const RouteInput& input,
                           const at::Tensor& counted);

// Returns [T, E] with 1 at the `choices` experts with the largest logits of every token, before
// capacity and without bias, else 0.
at::Tensor first_choices(const RouteInput& input, int64_t choices);

// Returns, per rank, the mean over tokens of -sum_j g_ij ln g_ij (top-p routing, Eq. 7).
at::Tensor entropy_loss(const at::Tensor& logits, const RouteInput& input);

// Returns, per rank, the mean over tokens of (ln sum_j e^{a_ij})^2 (ST-MoE, Eq. 5).
at::Tensor z_loss(const at::Tensor& logits, const RouteInput& input);

// Returns the mean over sequences of E sum_j f_j Q_j with f_j = the share of expert j among the
// selections of the sequence's tokens and Q_j = its mean probability (DeepSeek-V3, Eq. 17-20).
// counted [T, E] is 1 for experts that a token selects, else 0. Requires RouteInput::sequence.
at::Tensor sequence_balance_loss(const at::Tensor& logits, const RouteInput& input,
                                 const at::Tensor& counted);

// Sets l1 to, per rank, sum_j f_j mean_i max(0, a_ij) with f_j = E / (k T_r) #{i : a_ij > 0}
// (L1Weights::kRefined) or 1 (kPlain); or sets `balance`.
void add_l1_loss(AuxLosses& losses, const at::Tensor& logits, const RouteInput& input,
                 const at::Tensor& count, const RouterSettings& settings);

// Returns the factors of BalanceSums::scores: E f_j, for ReLU E f_j / k, or 1 with l1=plain, where
// f_j = counted_j / tokens. counted [..., E] f64 of `tokens` tokens.
at::Tensor balance_factors(const at::Tensor& counted, int64_t tokens,
                           const RouterSettings& settings);

// Returns the coefficient of the L1 loss for the next step: lambda * multiplier if `sparsity` is
// below `target_sparsity` = 1 - k / E, else lambda / multiplier. It does not leave [kLambdaFloor,
// kLambdaCeiling]; a lambda from outside moves towards it only, and 0 remains 0.
double next_lambda(double lambda, double sparsity, double target_sparsity, double multiplier);

// Updates `bias` [E] in place after a step (Wang et al. 2024, Algorithm 1): adds `rate` for experts
// with fewer `requests` [E] than the mean, and subtracts it for experts with more.
void update_bias(at::Tensor bias, const std::vector<int64_t>& requests, double rate);

}  // namespace moe::route
