#pragma once
// The loss of a language model and its gradient in the logits, row by row and in place, so that
// logits, probabilities and gradient are never there at once.
//
//   loss = log(sum_v exp(z_v)) - z_target        d loss / d z = softmax(z) - onehot(target)

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// logits [n, V] f32, contiguous; target [n] i64 in [0, V). Every row of `logits` becomes
// scale * d loss / d z. Returns the sum of the losses of the rows, added in f64; NaN where a row
// has a NaN. On a GPU the sum is read back, which waits for it.
// NOLINTNEXTLINE(readability-identifier-naming): in place, as LibTorch marks it
double cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale);

// The same without a sum: each row's loss goes to `loss` [n] f64, and nothing waits for a GPU.
// Returns the gradient [n, V]: the logits' own tensor, or with `in_bf16` each number rounded to
// bf16 in the first half of its row's memory, where products can read it as it is.
// NOLINTNEXTLINE(readability-identifier-naming): in place, as LibTorch marks it
at::Tensor cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale,
                          const at::Tensor& loss, bool in_bf16);

// Plain memory: logits [rows, vocabulary]; target [rows]; loss [rows] f64, each row's own.
struct CrossEntropyArgs {
  float* logits;
  const int64_t* target;
  double* loss;
  int64_t rows, vocabulary;
  double scale;
  bool gradient_is_bf16 = false;  // in the first half of each row's memory
};
void cross_entropy_cpu(const CrossEntropyArgs& args);
void cross_entropy_cuda(const CrossEntropyArgs& args, void* stream);

}  // namespace moe::kernels
