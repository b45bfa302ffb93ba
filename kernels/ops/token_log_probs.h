#pragma once
// Log-probabilities of given tokens under the language-model head. On the CPU the logits hidden
// weight^T [n, V] are not materialised: blocks that fit the cache are reduced to a maximum and a
// sum of exponentials per row ("online softmax").
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
  float logprob = 0;       // natural logarithm; NaN if the row has a NaN
  bool is_argmax = false;  // the first of equal logits
};

// Returns one result per target, in their order. hidden [n, D] f32; weight [V, D] f32, bf16 or f16;
// products in `type` (kernels/ops/linear.h); `targets` in ascending order of rows.
std::vector<TokenLogProb> token_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                                          at::ScalarType type,
                                          std::span<const TargetToken> targets);

// token_log_probs() from materialised logits of up to 64 MiB at a time, for GPUs and few rows.
std::vector<TokenLogProb> token_log_probs_from_logits(const at::Tensor& hidden,
                                                      const at::Tensor& weight, at::ScalarType type,
                                                      std::span<const TargetToken> targets);

struct TokenLogProbArgs {
  MatrixView hidden;  // [rows, width]
  MatrixView weight;  // [width, vocabulary]
  int64_t rows, width, vocabulary;
  std::span<const TargetToken> targets;
  TokenLogProb* results;  // [targets.size()]
};
void token_log_probs_cpu(const TokenLogProbArgs& args);

}  // namespace moe::kernels
