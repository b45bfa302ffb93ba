#pragma once
// What a router reads out of a batch of tokens, as two operations: logits in one read of the
// tokens, and everything that is decided token by token in one read of the logits. T tokens, D
// model width, E experts, W logical ranks, C choices a token names.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

// logits[t, e] = sum_d x[t, d] weight[e, d], products and sums in f32 whatever x is. x [tokens,
// width] f32 or bf16, weight [experts, width], logits [tokens, experts].
struct RouterLogitsArgs {
  const void* x;
  const float* weight;
  float* logits;
  int64_t tokens, width, experts;
  bool is_bf16;
};
void router_logits_cuda(const RouterLogitsArgs& args, void* stream);

// The gradients of those logits, in f32 by sums of one order: d x[t, d] = sum_e grad[t, e] weight
// [e, d] and d weight[e, d] = sum_t grad[t, e] x[t, d], the latter over strips of tokens at first.
constexpr int64_t router_strips(int64_t tokens, int64_t experts) {
  return std::clamp<int64_t>(tokens / 128, 1, 1024 / std::clamp<int64_t>(experts, 8, 1024));
}

struct RouterLogitsBackwardArgs {
  const void* x;
  const float *weight, *grad;  // grad [tokens, experts]
  void* grad_x;                // [tokens, width] as x; null: nobody asks
  float* grad_weight;          // [experts, width]; null: nobody asks
  float* strips;               // [router_strips(tokens, experts), experts, width], with grad_weight
  int64_t tokens, width, experts;
  bool is_bf16;
};
void router_logits_backward_cuda(const RouterLogitsBackwardArgs& args, void* stream);

struct RouterShape {
  int64_t tokens, experts, ranks, choices;  // T, E, W with W | E, C <= E
  bool is_relu;                             // scores: ReLU, or softmax
};

// Larger logits come first, ties go to the lower expert, as torch.sort orders (order_key.h).
struct RouterChoicesArgs {
  const float* logits;  // [T, E]
  const int32_t* home;  // [T] the rank of each token, W for padding, which requests nothing
  RouterShape shape;
  float* scores;       // [T, E] softmax or ReLU of the row
  int32_t* choice;     // [T, C] the experts of the largest logits, best first
  int32_t* at_home;    // [T] the best expert of the token's own rank; -1 for padding
  int32_t* requested;  // [C, E * W] tokens at home on w whose choice c is e, at [c, e * W + w]
};
inline constexpr int64_t kMaxRouterExperts = 256;  // more throw std::runtime_error
void router_choices_cuda(const RouterChoicesArgs& args, void* stream);
// Of any number of experts; writes `choice` and `at_home`, as LibTorch has the scores already and
// top_k_plan_cpu() counts by itself.
void router_choices_cpu(const RouterChoicesArgs& args);

// All experts of each token in that order, on the CPU.
struct ExpertOrderArgs {
  const float* logits;  // [T, E]
  int64_t* order;       // [T, E]
  int64_t tokens, experts;
};
void expert_order_cpu(const ExpertOrderArgs& args);

}  // namespace moe::kernels
