#pragma once
// What a finished plan of a softmax router comes to: how often each token is served and what is
// counted of it, then the weights of its rows and the losses, with their gradient. On a GPU each is
// a few launches, on the CPU a few loops that threads share; in LibTorch's operations, as
// core/route/{gates,losses,counters}.cpp have them for every device and every router, it is some
// twenty each, most of which one thread computes.
//
// T tokens, E experts, W ranks, R rows of the plan, k choices of a token. Sums over tokens are made
// in f64, in one order; atomics add whole numbers, or two numbers at most to a zero.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

// Kinds of rows. kAwayRow is added to a row whose expert another rank owns, counted only where rows
// travel one by one (dropless routers).
inline constexpr int64_t kAcceptedRow = 0, kFilledRow = 1, kRectifiedRow = 2;
inline constexpr int64_t kRectifiedAloneRow = 3;  // of a token that no expert accepted
inline constexpr int64_t kAwayRow = 4, kRowKinds = 8;

// All pointers of these structs are the device's.
struct PlanRows {
  const int64_t *token, *expert, *choice, *count;  // [R] as core/route/plan.h has them
  const int64_t* home;                             // [T] the rank of each token, W for padding
  int64_t rows, tokens, experts, ranks, k;         // E <= kMaxRouterExperts on a GPU
};

// Sums over tokens that the kernels keep until they are added up.
constexpr int64_t plan_weights_sums(int64_t tokens) {
  constexpr int64_t kTokensOfBlock = 8, kMostBlocks = 1024;
  return std::clamp<int64_t>((tokens + kTokensOfBlock - 1) / kTokensOfBlock, 1, kMostBlocks);
}

struct PlanCountsArgs {
  PlanRows plan;
  const float *logits, *scores;  // [T, E], scores = softmax of the logits
  bool rectifies;                // rows of choice k + 1 may be a token's only ones
  bool dropless;
  float* count;      // [T, E] how often each token is served by each expert
  int64_t* counted;  // [(W + 1) * kRowKinds + 2]: rows by home rank and kind (the last kRowKinds
                     // are no rank's), tokens with a row, the bits of the entropies' sum (f64)
  double* sums;      // [plan_weights_sums(T)] scratch
};
void plan_counts_cuda(const PlanCountsArgs& args, void* stream);
void plan_counts_cpu(const PlanCountsArgs& args);

// Which gates and losses (core/route/gates.h, losses.h).
struct PlanWeightsKind {
  bool normalise, straight_through;
  int64_t lb_choices;    // each token counts so many of its first choices in its balance
  int64_t ranks_in_use;  // ranks that have a token, 1 where none has
};

// From the logits: w [T, E] as `combine`, the weight of each row of the plan (its share of w where
// two rows name one token and expert), the load-balance loss, and the z-loss where it is asked for.
struct PlanWeightsArgs {
  PlanRows plan;
  PlanWeightsKind kind;
  const float *logits, *count;  // [T, E]
  const int64_t* by_logit;      // [T, E] experts of each token by logit, best first
  float* combine;               // [T, E]
  float* weights;               // [R]
  // [W * E + W] tokens at home on w that count e, at w * E + e; then tokens of each rank. Kept for
  // the gradient.
  int32_t* chosen;
  double* sums;             // [2 * plan_weights_sums(T)] scratch
  float *load_balance, *z;  // one number each; z null: nobody asks
};
void plan_weights_cuda(const PlanWeightsArgs& args, void* stream);
void plan_weights_cpu(const PlanWeightsArgs& args);

// The gradient of the same in the logits.
struct PlanWeightsBackwardArgs {
  PlanRows plan;
  PlanWeightsKind kind;
  const float *logits, *count, *combine;  // [T, E]
  const int32_t* chosen;                  // as the forward left it
  // Gradients of what the forward gave: [R], [T, E], one number each; null: zero.
  const float *grad_weights, *grad_combine, *grad_load_balance, *grad_z;
  float* pulled;       // [T, E] scratch
  float* grad_logits;  // [T, E]
};
void plan_weights_backward_cuda(const PlanWeightsBackwardArgs& args, void* stream);
void plan_weights_backward_cpu(const PlanWeightsBackwardArgs& args);

}  // namespace moe::kernels
