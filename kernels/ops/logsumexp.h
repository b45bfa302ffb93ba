#pragma once
// What scoring asks of a row of logits, in one pass over it: its log-sum-exp and its largest entry.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moe::kernels {

struct RowScores {
  at::Tensor logsumexp;  // [n] f32
  at::Tensor argmax;     // [n] i64, the first of equals
};

// logits [n, V] f32, contiguous, V > 0. A row with something that is no number has a log-sum-exp
// that is none.
RowScores row_scores(const at::Tensor& logits);

// The reference: plain loops in double. logits [rows, vocabulary].
void row_scores_reference(const float* logits, float* logsumexp, int64_t* argmax, int64_t rows,
                          int64_t vocabulary);

// The CUDA entry point (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t.
void row_scores_cuda(const float* logits, float* logsumexp, int64_t* argmax, int64_t rows,
                     int64_t vocabulary, void* stream);

// The largest of `count` numbers on the host; -infinity of none. What is no number is passed over.
float row_largest(const float* row, int64_t count);

// The sum over `count` numbers on the host of exp(x - most), none of which is above `most`.
double sum_of_exponentials(const float* row, int64_t count, float most);

}  // namespace moe::kernels
