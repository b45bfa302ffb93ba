// row_scores.h on CUDA: one block a row, one read of it.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/online_softmax.cuh"

namespace moe::kernels {

namespace {

template <int kCount>
__global__ void __launch_bounds__(kRowThreads)
    scores_kernel(const float* logits,  // [rows, vocabulary]
                  float* logsumexp,     // [rows]
                  int64_t* argmax,      // [rows]
                  int vocabulary) {
  __shared__ RowPart parts[kRowThreads / kLanes];
  const RowPart part =
      row_part<kCount>(logits + int64_t{blockIdx.x} * vocabulary, vocabulary, parts);
  if (threadIdx.x == 0) {
    logsumexp[blockIdx.x] =
        static_cast<float>(static_cast<double>(part.most) + log(static_cast<double>(part.sum)));
    argmax[blockIdx.x] = part.index == kNowhere ? 0 : part.index;
  }
}

}  // namespace

void row_scores_cuda(const float* logits, float* logsumexp, int64_t* argmax, int64_t rows,
                     int64_t vocabulary, void* stream) {
  const bool vectors = fits_vectors(vocabulary, logits);
  launch(vectors ? scores_kernel<kVector> : scores_kernel<1>, rows, kRowThreads, stream, logits,
         logsumexp, argmax, static_cast<int>(vocabulary));
}

}  // namespace moe::kernels
