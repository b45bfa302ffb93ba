// cross_entropy.h on CUDA: one block per row. Log-sum-exp reads a row once. The loss reads a row
// twice (the second time from the L2 for common vocabularies) and overwrites it with its gradient.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/cross_entropy.h"

namespace moe::kernels {

namespace {

constexpr int kRowThreads = 512;
constexpr int kNoIndex = 0x7fffffff;

// Reduction of a row of logits by a block in one pass ("online softmax", Milakov and Gimelshein
// 2018): maximum, its first index, and sum of exp(z - maximum), which is rescaled when a larger
// logit is found. A NaN makes the sum NaN; an infinity is visible in `max`.
struct RowSoftmax {
  float max;
  int index;
  float sum;
};

__device__ RowSoftmax empty_softmax() { return {-HUGE_VALF, kNoIndex, 0.0F}; }

__device__ void add_logit(RowSoftmax& part, float x, int index) {
  if (x > part.max) {
    part.sum = part.sum * expf(part.max - x) + 1.0F;
    part.max = x;
    part.index = index;
  } else {
    part.sum += x == part.max ? 1.0F : expf(x - part.max);  // avoids exp(-infinity + infinity)
  }
}

__device__ RowSoftmax merge(const RowSoftmax& a, const RowSoftmax& b) {
  const bool a_first = a.max > b.max || (a.max == b.max && a.index <= b.index);
  RowSoftmax all = a_first ? a : b;
  all.sum = (a.max == all.max ? a.sum : a.sum * expf(a.max - all.max)) +
            (b.max == all.max ? b.sum : b.sum * expf(b.max - all.max));
  return all;
}

__device__ RowSoftmax warp_merge(RowSoftmax part) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    RowSoftmax other = empty_softmax();
    other.max = __shfl_xor_sync(kAllLanes, part.max, step);
    other.index = __shfl_xor_sync(kAllLanes, part.index, step);
    other.sum = __shfl_xor_sync(kAllLanes, part.sum, step);
    part = merge(part, other);
  }
  return part;
}

// Returns the reduction of `row` [count] to all threads of the block. `parts`: shared memory, one
// element per warp.
template <int kCount>
__device__ RowSoftmax row_softmax(const float* row, int count, RowSoftmax* parts) {
  RowSoftmax part = empty_softmax();
  for (int i = threadIdx.x * kCount; i < count; i += kRowThreads * kCount) {
    const auto values = load<kCount>(row + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      add_logit(part, values.at[k], i + k);
    }
  }
  part = warp_merge(part);
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  if (lane == 0) {
    parts[warp] = part;
  }
  __syncthreads();
  return warp_merge(lane < kRowThreads / kLanes ? parts[lane] : empty_softmax());
}

template <typename Out, int kCount>
__global__ void __launch_bounds__(kRowThreads) loss_kernel(float* logits,  // [rows, vocabulary]
                                                           const int64_t* target,  // [rows]
                                                           double* loss,           // [rows]
                                                           int vocabulary, float scale) {
  __shared__ RowSoftmax parts[kRowThreads / kLanes];
  float* row = logits + int64_t{blockIdx.x} * vocabulary;
  const int target_index = static_cast<int>(target[blockIdx.x]);
  const float target_logit = row[target_index];  // read by all threads before any of them writes
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
      __syncthreads();  // all elements that are overwritten have been read
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
         args.logits, args.target, args.loss, args.vocabulary, args.scale);
}

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

void cross_entropy_cuda(const CrossEntropyArgs& args, void* stream) {
  args.gradient_is_bf16 ? run<__nv_bfloat16>(args, stream) : run<float>(args, stream);
}

void logsumexp_cuda(const LogSumExpArgs& args, void* stream) {
  const bool vectors = fits_vectors(args.vocabulary, args.logits);
  launch(vectors ? logsumexp_kernel<kVector> : logsumexp_kernel<1>, args.rows, kRowThreads, stream,
         args.logits, args.logsumexp, args.argmax, args.vocabulary);
}

}  // namespace moe::kernels
