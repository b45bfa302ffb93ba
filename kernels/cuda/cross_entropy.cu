// softmax_nll.h on CUDA: one block a row, which is read once for its sum and again, from the L2
// where a row of a common vocabulary still lies, to become its own gradient.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/ops/cross_entropy.h"

namespace moe::kernels {

namespace {

template <int kCount>
__global__ void __launch_bounds__(kRowThreads) nll_kernel(float* logits,  // [rows, vocabulary]
                                                          const int64_t* target,  // [rows]
                                                          double* nll,            // [rows]
                                                          int vocabulary, float scale) {
  __shared__ RowPart parts[kRowThreads / kLanes];
  float* row = logits + int64_t{blockIdx.x} * vocabulary;
  const int wanted = static_cast<int>(target[blockIdx.x]);
  const float wanted_logit = row[wanted];  // read by all before anybody writes
  const RowPart part = row_part<kCount>(row, vocabulary, parts);
  if (threadIdx.x == 0) {
    nll[blockIdx.x] = log(static_cast<double>(part.sum)) + part.most - wanted_logit;
  }
  const float factor = scale / part.sum;
  for (int i = threadIdx.x * kCount; i < vocabulary; i += kRowThreads * kCount) {
    auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float share = expf(values.at[k] - part.most) * factor;
      values.at[k] = i + k == wanted ? share - scale : share;
    }
    store(row + i, values);
  }
}

}  // namespace

void softmax_nll_cuda(float* logits, const int64_t* target, double* nll, int64_t rows,
                      int64_t vocabulary, double scale, void* stream) {
  const bool vectors = fits_vectors(vocabulary, logits);
  launch(vectors ? nll_kernel<kVector> : nll_kernel<1>, rows, kRowThreads, stream, logits, target,
         nll, static_cast<int>(vocabulary), static_cast<float>(scale));
}

}  // namespace moe::kernels
