#pragma once
// Cross-entropy loss of a language model with its gradient in place of the logits, and the
// log-sum-exp and argmax of each row of logits for scoring.
//
//   loss = log(sum_v exp(z_v)) - z_target        d loss / d z = softmax(z) - onehot(target)
//
// n rows, V vocabulary.

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

// Replaces each row of `logits` [n, V] f32, contiguous, by scale * d loss / d z. target [n] i64 in
// [0, V). Writes the loss of each row to `loss` [n] f64; NaN if the row has a NaN. Returns the
// gradient [n, V]: `logits`, or with `in_bf16` a bf16 view of the first half of each row's memory.
// NOLINTNEXTLINE(readability-identifier-naming): LibTorch's suffix of functions in place
at::Tensor cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale,
                          const at::Tensor& loss, bool in_bf16);

struct CrossEntropyArgs {
  float* logits;          // [rows, vocabulary]
  const int64_t* target;  // [rows]
  double* loss;           // [rows]
  int64_t rows, vocabulary;
  double scale;
  bool gradient_is_bf16 = false;  // in the first half of each row's memory
};
void cross_entropy_cpu(const CrossEntropyArgs& args);
void cross_entropy_cuda(const CrossEntropyArgs& args, void* stream);

// Computes logsumexp [n] f32 and argmax [n] i64 (the first of equal logits) of logits [n, V] f32,
// V > 0. The log-sum-exp of a row with a NaN is NaN.
void logsumexp_argmax(const at::Tensor& logits, at::Tensor& logsumexp, at::Tensor& argmax);

struct LogSumExpArgs {
  const float* logits;  // [rows, vocabulary]
  float* logsumexp;     // [rows]
  int64_t* argmax;      // [rows]
  int64_t rows, vocabulary;
};
void logsumexp_cpu(const LogSumExpArgs& args);
void logsumexp_cuda(const LogSumExpArgs& args, void* stream);

}  // namespace moe::kernels
