// cross_entropy.h on CUDA: one block a row, which is read once for its sum and again, from the L2
// where a row of a common vocabulary still is, to become its own gradient. A gradient of bf16 takes
// the first half of the row's memory: the block has read what it is about to write over, because
// the numbers that it has written never reach beyond half of those that it has read.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/ops/cross_entropy.h"

namespace moe::kernels {

namespace {

template <typename Out, int kCount>
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
  auto* gradient = reinterpret_cast<Out*>(row);
  for (int first = 0; first < vocabulary; first += kRowThreads * kCount) {
    const int i = first + static_cast<int>(threadIdx.x) * kCount;
    Pack<Out, kCount> result = {};
    if (i < vocabulary) {
      const auto values = load<kCount>(row + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float probability = expf(values.at[k] - part.max) * factor;
        result.at[k] = narrow<Out>(i + k == target_index ? probability - scale : probability);
      }
    }
    if constexpr (sizeof(Out) < sizeof(float)) {
      __syncthreads();  // all have read what others write over
    }
    if (i < vocabulary) {
      store(gradient + i, result);
    }
  }
}

template <typename Out>
void run(const CrossEntropyArgs& args, void* stream) {
  const bool vectors = fits_vectors(args.vocabulary, args.logits);
  launch(vectors ? loss_kernel<Out, kVector> : loss_kernel<Out, 1>, args.rows, kRowThreads, stream,
         args.logits, args.target, args.loss, static_cast<int>(args.vocabulary),
         static_cast<float>(args.scale));
}

}  // namespace

void cross_entropy_cuda(const CrossEntropyArgs& args, void* stream) {
  args.gradient_is_bf16 ? run<__nv_bfloat16>(args, stream) : run<float>(args, stream);
}

}  // namespace moe::kernels
