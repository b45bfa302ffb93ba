#pragma once
// What scoring asks of a head: log-probabilities of given tokens, and whether they are the
// likeliest.
//
// logits = hidden weight^T [n, V] are never whole. On the CPU they are made a tile at a time, which
// stays in the cache and is folded into each row's largest logit and sum of exponentials while it
// is there: no memory is filled with logits, and the weight is read once for many rows.
//
// n rows, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moe::kernels {

struct AskedToken {
  int64_t row;    // 0 <= row < n
  int64_t token;  // 0 <= token < V
};

struct TokenScore {
  float logprob = 0;       // natural log; no number where the row has something that is none
  bool is_argmax = false;  // of equals, the first token is
};

// hidden [n, D] f32, weight [V, D] f32; operands are taken in `type` as kernels/ops/linear.h does.
// `asked` ascends by row. One score an asked token, in their order.
std::vector<TokenScore> head_scores(const at::Tensor& hidden, const at::Tensor& weight,
                                    at::ScalarType type, std::span<const AskedToken> asked);

// The reference, and the form for devices: all logits of all rows.
std::vector<TokenScore> head_scores_whole(const at::Tensor& hidden, const at::Tensor& weight,
                                          at::ScalarType type, std::span<const AskedToken> asked);

}  // namespace moe::kernels
