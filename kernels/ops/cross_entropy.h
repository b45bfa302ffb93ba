#pragma once
// The loss of a language model and its gradient in the logits, row by row and in place, so that
// logits, probabilities and gradient are never there at once.
//
//   nll = log(sum_v exp(z_v)) - z_target        d nll / d z = softmax(z) - onehot(target)

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// logits [n, V] f32, contiguous; target [n] i64 in [0, V). Every row of `logits` becomes
// scale * d nll / d z. Returns the sum of nll over the rows, added in f64 in the order of the rows.
// A row with something that is no number gives a loss that is none. On a GPU the sum is read back,
// which waits for it.
double softmax_nll_(at::Tensor& logits, const at::Tensor& target, double scale);

// The reference: plain loops in double.
double softmax_nll_reference(float* logits, const int64_t* target, int64_t rows, int64_t vocabulary,
                             double scale);

// The CUDA entry point (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t; nll [rows] f64 is each row's own.
void softmax_nll_cuda(float* logits, const int64_t* target, double* nll, int64_t rows,
                      int64_t vocabulary, double scale, void* stream);

}  // namespace moe::kernels
