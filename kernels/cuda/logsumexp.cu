// logsumexp.h on CUDA: one block a row, one read of it.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/ops/logsumexp.h"

namespace moe::kernels {

namespace {

template <int kCount>
__global__ void __launch_bounds__(kRowThreads)
    logsumexp_kernel(const float* logits,  // [rows, vocabulary]
                     float* logsumexp,     // [rows]
                     int64_t* argmax,      // [rows]
                     int vocabulary) {
  __shared__ RowSoftmax parts[kRowThreads / kLanes];
  const RowSoftmax part =
      row_softmax<kCount>(logits + int64_t{blockIdx.x} * vocabulary, vocabulary, parts);
  if (threadIdx.x == 0) {
    logsumexp[blockIdx.x] =
        static_cast<float>(static_cast<double>(part.max) + log(static_cast<double>(part.sum)));
    argmax[blockIdx.x] = part.index == kNoIndex ? 0 : part.index;
  }
}

}  // namespace

void logsumexp_cuda(const LogSumExpArgs& args, void* stream) {
  const bool vectors = fits_vectors(args.vocabulary, args.logits);
  launch(vectors ? logsumexp_kernel<kVector> : logsumexp_kernel<1>, args.rows, kRowThreads, stream,
         args.logits, args.logsumexp, args.argmax, static_cast<int>(args.vocabulary));
}

}  // namespace moe::kernels
