#pragma once
// Router kernels: logits of the tokens, their gradients, and the choices of each token. T tokens, D
// model width, E experts, W logical ranks, C choices per token.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

// logits[t, e] = sum_d x[t, d] weight[e, d], computed in f32.
struct RouterLogitsArgs {
  const void* x;        // [T, D] f32 or bf16
  const float* weight;  // [E, D]
  float* logits;        // [T, E]
  int64_t tokens, width, experts;
  bool is_bf16;
};
void router_logits_cuda(const RouterLogitsArgs& args, void* stream);

// Returns the number of strips of tokens over which the weight gradient is summed first.
constexpr int64_t router_strips(int64_t tokens, int64_t experts) {
  return std::clamp<int64_t>(tokens / 128, 1, 1024 / std::clamp<int64_t>(experts, 8, 1024));
}

// Gradients in f32, summed in a fixed order: d x[t, d] = sum_e grad[t, e] weight[e, d] and
// d weight[e, d] = sum_t grad[t, e] x[t, d].
struct RouterLogitsBackwardArgs {
  const void* x;
  const float *weight, *grad;  // grad [T, E]
  void* grad_x;                // [T, D] in the dtype of x; null: not computed
  float* grad_weight;          // [E, D]; null: not computed
  float* strips;               // [router_strips(T, E), E, D] scratch, for grad_weight
  int64_t tokens, width, experts;
  bool is_bf16;
};
void router_logits_backward_cuda(const RouterLogitsBackwardArgs& args, void* stream);

struct RouterShape {
  int64_t tokens, experts, ranks, choices;  // T, E, W with W | E, C <= E
};

// Choices of each token of a softmax router. Larger logits come first, equal logits by expert index
// (as in a stable torch.sort).
struct RouterChoicesArgs {
  const float* logits;  // [T, E]
  // [T], logical rank of each token; W: padding, which requests nothing
  const int32_t* source_rank;
  RouterShape shape;
  float* scores;          // [T, E], softmax of each row; GPU only
  int32_t* choice;        // [T, C], experts with the largest logits, best first
  int32_t* local_choice;  // [T], best expert of the token's own rank; -1 for padding
  int32_t* requested;     // [C, E * W], number of tokens of rank w whose choice c is e, at
                          // [c, e * W + w]; GPU only: top_k_plan_cpu() counts them itself
};
inline constexpr int64_t kMaxRouterExperts = 256;  // GPU kernels throw std::runtime_error for more
void router_choices_cuda(const RouterChoicesArgs& args, void* stream);
void router_choices_cpu(const RouterChoicesArgs& args);

// Experts of each token in the order of RouterChoicesArgs, on the CPU.
struct ExpertOrderArgs {
  const float* logits;  // [T, E]
  int64_t* order;       // [T, E]
  int64_t tokens, experts;
};
void expert_order_cpu(const ExpertOrderArgs& args);

}  // namespace moe::kernels
