#pragma once
// Kernels that evaluate a finished plan of a softmax router: counters, weights of the rows, losses
// and the gradient of the logits. core/route/{route,counters}.cpp compute the same values for all
// routers with about twenty LibTorch operations each.
//
// T tokens, E experts, W ranks, R rows of the plan, k choices per token. Sums over tokens are f64
// in a fixed order. Atomics add integers, or at most two addends to 0, so that results are
// deterministic.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

// Kinds of rows. kRemoteRow is added to the kind of a row whose expert belongs to another rank, for
// dropless routers only: the others send buffers of fixed size.
inline constexpr int64_t kAcceptedRow = 0, kFilledRow = 1, kRectifiedRow = 2;
inline constexpr int64_t kRectifiedAloneRow = 3;  // of a token that no expert accepted
inline constexpr int64_t kRemoteRow = 4, kRowKinds = 8;

// Rows of a plan. All pointers of the structs below are on the device of the run.
struct PlanRows {
  const int64_t *token, *expert, *choice, *count;  // [R] as in core/route/plan.h
  const int64_t* source_rank;                      // [T], rank of each token, W for padding
  int64_t rows, tokens, experts, ranks, k;         // E <= kMaxRouterExperts on a GPU
};

// Returns the number of partial sums over tokens.
constexpr int64_t plan_gate_weights_sums(int64_t tokens) {
  constexpr int64_t kBlockTokens = 8, kMaxBlocks = 1024;
  return std::clamp<int64_t>((tokens + kBlockTokens - 1) / kBlockTokens, 1, kMaxBlocks);
}

struct PlanCountsArgs {
  PlanRows plan;
  const float *logits, *scores;  // [T, E], scores = softmax of the logits
  bool rectifies;                // rows of choice k + 1 can be the only rows of a token
  bool is_dropless;
  float* count;  // [T, E], sum of `count` over the rows of each (token, expert)
  // [(W + 1) * kRowKinds + 2]: number of rows of each kind by rank of the token, the last kRowKinds
  // for padding; then the number of tokens with a row; then the bits of the entropy sum (f64).
  int64_t* counted;
  double* sums;  // [plan_gate_weights_sums(T)] scratch
};
// Returns the kind of a row, for a token of rank `source_rank`. Shared by the CPU and CUDA kernels.
constexpr int64_t row_kind(const PlanCountsArgs& args, int64_t row, int64_t source_rank) {
  const PlanRows& plan = args.plan;
  const int64_t later = plan.choice[row] - (plan.k - 1);  // 0 or less: one of the first k choices
  int64_t kind = later > 0 ? later : kAcceptedRow;
  if (args.rectifies && kind == kRectifiedRow && plan.count[row] == plan.k) {
    kind = kRectifiedAloneRow;
  }
  const bool is_remote = plan.expert[row] / (plan.experts / plan.ranks) != source_rank;
  return kind + (args.is_dropless && plan.ranks > 1 && is_remote ? kRemoteRow : 0);
}
// Returns the share of a row in the weight of its (token, expert). count: PlanCountsArgs::count.
constexpr float row_share(const PlanRows& plan, const float* count, int64_t row) {
  const float n = count[plan.token[row] * plan.experts + plan.expert[row]];
  return static_cast<float>(plan.count[row]) / (n > 1 ? n : 1.0F);
}
void plan_counts_cuda(const PlanCountsArgs& args, void* stream);
void plan_counts_cpu(const PlanCountsArgs& args);

// Options of the gates and losses (core/route/route.h).
struct GateOptions {
  bool normalise, straight_through;
  int64_t lb_choices;    // first choices of each token that the load-balance loss counts
  int64_t ranks_in_use;  // ranks with a token, at least 1
};

struct PlanGateWeightsArgs {
  PlanRows plan;
  GateOptions options;
  const float *logits, *count;  // [T, E]
  const int64_t* by_logit;      // [T, E], experts of each token by logit, best first
  float* combine;               // [T, E], weights w of Routing (core/route/route.h)
  float* weights;               // [R], w of each row; two rows of one (token, expert) share w
  // [W * E + W]: number of tokens of rank w that choose e, at w * E + e; then tokens of each rank.
  int32_t* chosen;
  double* sums;             // [2 * plan_gate_weights_sums(T)] scratch
  float *load_balance, *z;  // losses, one element each; null z: not computed
};
// Returns the number of tokens of a rank. chosen: PlanGateWeightsArgs::chosen.
constexpr float rank_tokens(const PlanRows& plan, const int32_t* chosen, int64_t rank) {
  return static_cast<float>(chosen[plan.ranks * plan.experts + rank]);
}
// Returns the weight of a token of `rank` < W in the mean over ranks of means over tokens.
constexpr float token_weight(const PlanRows& plan, const GateOptions& options,
                             const int32_t* chosen, int64_t rank) {
  return 1.0F / (rank_tokens(plan, chosen, rank) * static_cast<float>(options.ranks_in_use));
}
// Returns the factor of the token's probability of expert e in the load-balance loss.
constexpr float balance_factor(const PlanRows& plan, const int32_t* chosen, int64_t rank, int64_t e,
                               float weight) {
  const auto count = static_cast<float>(chosen[rank * plan.experts + e]);
  return static_cast<float>(plan.experts) * (count / rank_tokens(plan, chosen, rank)) * weight;
}
void plan_gate_weights_cuda(const PlanGateWeightsArgs& args, void* stream);
void plan_gate_weights_cpu(const PlanGateWeightsArgs& args);

// The gradient of a token's logits is the sum of three terms:
//   gates         w U - basis sum_j w_j U_j, U = gradient of w, basis = g or w (core/route/route.h)
//   load balance  g (c - sum_j c_j g_j), c = factor of a probability g in the loss
//   z-loss        2 v lse g, v = weight of the token in the loss, lse = log-sum-exp of the logits
// Each loss term is multiplied by the gradient of the loss.
struct PlanGateWeightsBackwardArgs {
  PlanRows plan;
  GateOptions options;
  const float *logits, *count, *combine;  // [T, E]
  const int32_t* chosen;                  // from the forward
  // Gradients of the forward's results: [R], [T, E], one element, one element; null: zero.
  const float *grad_weights, *grad_combine, *grad_load_balance, *grad_z;
  float* scratch;      // [T, E]
  float* grad_logits;  // [T, E]
};
void plan_gate_weights_backward_cuda(const PlanGateWeightsBackwardArgs& args, void* stream);
void plan_gate_weights_backward_cpu(const PlanGateWeightsBackwardArgs& args);

}  // namespace moe::kernels
