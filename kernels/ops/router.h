#pragma once
// What a router reads out of a batch of tokens, as two operations: logits in one read of the
// tokens, and everything that is decided token by token in one read of the logits (see
// core/route/README.md). T tokens, D width, E experts, W logical ranks, C choices a token names.

#include <cstdint>

namespace moe::kernels {

// logits[t, e] = sum_d x[t, d] weight[e, d], products and sums in f32 whatever x is.
// The reference: plain loops in double. x [tokens, width], weight [experts, width], logits [tokens,
// experts].
void router_logits_reference(const float* x, const float* weight, float* logits, int64_t tokens,
                             int64_t width, int64_t experts);
// Device pointers, x f32 or bf16, a cudaStream_t.
void router_logits_cuda(const void* x, const float* weight, float* logits, int64_t tokens,
                        int64_t width, int64_t experts, bool is_bf16, void* stream);

struct RouterShape {
  int64_t tokens, experts, ranks, choices;  // T, E, W with W | E, C <= E
  bool is_relu;                             // scores: ReLU, or softmax
};

// What comes out. Larger logits first, ties to the lower expert, as torch.sort orders
// (order_key.h).
struct RouterChoices {
  float* scores;       // [T, E] softmax or ReLU of the row
  int32_t* choice;     // [T, C] the experts of the largest logits, best first
  int32_t* at_home;    // [T] the best expert of the token's own rank; -1 for padding
  int32_t* requested;  // [C, E * W] tokens at home on w whose choice c is e, at [c, e * W + w]
};

// home [T]: the rank of each token, W for padding, which requests nothing.
void router_choices_reference(const float* logits, const int32_t* home, const RouterShape& shape,
                              const RouterChoices& to);

inline constexpr int64_t kMaxRouterExperts = 256;  // of the kernel; more throw std::runtime_error
void router_choices_cuda(const float* logits, const int32_t* home, const RouterShape& shape,
                         const RouterChoices& to, void* stream);

}  // namespace moe::kernels
