// cross_entropy.h on CUDA: one block a row, which is read once for its sum and again, from the L2
// where a row of a common vocabulary still is, to become its own gradient.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/ops/cross_entropy.h"

namespace moe::kernels {

namespace {

template <int kCount>
__global__ void __launch_bounds__(kRowThreads) loss_kernel(float* logits,  // [rows, vocabulary]
                                                           const int64_t* target,  // [rows]
                                                           double* loss,           // [rows]
                                                           int vocabulary, float scale) {
  __shared__ RowSoftmax parts[kRowThreads / kLanes];
  float* row = logits + int64_t{blockIdx.x} * vocabulary;
  const int target_index = static_cast<int>(target[blockIdx.x]);
  const float target_logit = row[target_index];  // read by every thread before any of them writes
  const RowSoftmax part = row_softmax<kCount>(row, vocabulary, parts);
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = log(static_cast<double>(part.sum)) + part.max - target_logit;
  }
  const float factor = scale / part.sum;
  for (int i = threadIdx.x * kCount; i < vocabulary; i += kRowThreads * kCount) {
    auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float probability = expf(values.at[k] - part.max) * factor;
      values.at[k] = i + k == target_index ? probability - scale : probability;
    }
    store(row + i, values);
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropyArgs& args, void* stream) {
  const bool vectors = fits_vectors(args.vocabulary, args.logits);
  launch(vectors ? loss_kernel<kVector> : loss_kernel<1>, args.rows, kRowThreads, stream,
         args.logits, args.target, args.loss, static_cast<int>(args.vocabulary),
         static_cast<float>(args.scale));
}

}  // namespace moe::kernels
