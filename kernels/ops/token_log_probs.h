#pragma once
// Log-probabilities of given tokens under the head, and whether each is the most likely one.
//
// logits = hidden weight^T [n, V] are never held whole on the CPU: they are computed a block at a
// time, which stays in the cache and is folded into each row's maximum and sum of exponentials
// ("online softmax"). No memory is filled with logits, and the weight is read once for many rows.
//
// n rows, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace moe::kernels {

struct TargetToken {
  int64_t row;    // 0 <= row < n
  int64_t token;  // 0 <= token < V
};

struct TokenLogProb {
  float logprob = 0;       // natural logarithm; NaN where the row has a NaN
  bool is_argmax = false;  // of equal logits the first token is
};

// hidden [n, D] f32, weight [V, D] f32, bf16 or f16; operands are taken in `type` as
// kernels/ops/linear.h does. `targets` ascend by row. One result a target, in their order.
std::vector<TokenLogProb> token_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                                          at::ScalarType type,
                                          std::span<const TargetToken> targets);

// The same by way of whole logits of some rows at a time: the form for GPUs and for few rows, and
// what tests compare the blocks with.
std::vector<TokenLogProb> token_log_probs_of_whole_logits(const at::Tensor& hidden,
                                                          const at::Tensor& weight,
                                                          at::ScalarType type,
                                                          std::span<const TargetToken> targets);

// The blocks' form on the CPU. results [targets].
struct TokenLogProbArgs {
  MatrixView hidden;  // [rows, width]
  MatrixView weight;  // [width, vocabulary]
  int64_t rows, width, vocabulary;
  std::span<const TargetToken> targets;
  TokenLogProb* results;
};
void token_log_probs_cpu(const TokenLogProbArgs& args);

}  // namespace moe::kernels
