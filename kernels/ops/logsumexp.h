#pragma once
// What scoring needs of each row of logits, in one pass over it: its log-sum-exp and its argmax.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// logits [n, V] f32, V > 0 -> logsumexp [n] f32 and argmax [n] i64, of equals the first. The
// log-sum-exp of a row with a NaN is NaN.
void logsumexp_argmax(const at::Tensor& logits, at::Tensor& logsumexp, at::Tensor& argmax);

// Plain memory: logits [rows, vocabulary], the results [rows].
struct LogSumExpArgs {
  const float* logits;
  float* logsumexp;
  int64_t* argmax;
  int64_t rows, vocabulary;
};
void logsumexp_cpu(const LogSumExpArgs& args);
void logsumexp_cuda(const LogSumExpArgs& args, void* stream);

}  // namespace moe::kernels
