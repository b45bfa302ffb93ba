// router.h on CUDA. Logits: a warp computes 4 tokens by 8 experts, or 2 tokens by 16 experts,
// with lanes along the width. Gradients: a thread computes kCount columns of d x for eight tokens,
// or of d weight for eight experts and a strip of tokens; a second kernel adds the strips in order.
// Choices: one warp per token, with lanes along the experts. Each choice is the maximum of the
// remaining 64-bit keys (top_k_plan.h).

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

template <typename T, int kTokens, int kTile, int kCount>
__global__ void __launch_bounds__(kThreads) logits_kernel(const T* x,           // [tokens, width]
                                                          const float* weight,  // [experts, width]
                                                          float* logits,        // [tokens, experts]
                                                          int64_t tokens, int width, int experts) {
  const int lane = threadIdx.x % kLanes;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes) * kTokens;
  if (first >= tokens) {
    return;  // warp-uniform
  }
  for (int tile = 0; tile < experts; tile += kTile) {
    float sum[kTokens][kTile] = {};
    for (int i = lane * kCount; i < width; i += kLanes * kCount) {
      Pack<T, kCount> values[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int64_t token = first + t < tokens ? first + t : tokens - 1;
        values[t] = load<kCount>(x + token * width + i);
      }
#pragma unroll
      for (int e = 0; e < kTile; ++e) {
        const int expert = tile + e < experts ? tile + e : experts - 1;
        const auto weights = load<kCount>(weight + int64_t{expert} * width + i);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            sum[t][e] += widen(values[t].at[k]) * weights.at[k];
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int e = 0; e < kTile; ++e) {
        const float total = warp_sum(sum[t][e]);
        if (lane == (t * kTile + e) % kLanes && first + t < tokens && tile + e < experts) {
          logits[(first + t) * experts + tile + e] = total;
        }
      }
    }
  }
}

template <typename T>
void run_logits(const RouterLogitsArgs& args, void* stream) {
  const bool vectors = fits_vectors(args.width, args.x, args.weight);
  const bool few = args.experts <= 8;
  const auto few_kernel = vectors ? logits_kernel<T, 4, 8, kVector> : logits_kernel<T, 4, 8, 1>;
  const auto many_kernel = vectors ? logits_kernel<T, 2, 16, kVector> : logits_kernel<T, 2, 16, 1>;
  launch(few ? few_kernel : many_kernel, ceil_div(args.tokens, kWarps * (few ? 4 : 2)), kThreads,
         stream, args.x, args.weight, args.logits, args.tokens, args.width, args.experts);
}

constexpr int kTokensAtOnce = 8, kExpertsAtOnce = 8;

// Grid (tokens, columns). A block reads each weight once for eight tokens.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(const float* __restrict__ grad,    // [tokens, experts]
                          const float* __restrict__ weight,  // [experts, width]
                          T* __restrict__ grad_x,            // [tokens, width]
                          int64_t tokens, int width, int experts) {
  const int64_t across = ceil_div(width, kThreads * kCount);
  const int64_t first = blockIdx.x / across * kTokensAtOnce;
  const int64_t column = (blockIdx.x % across * kThreads + threadIdx.x) * kCount;
  if (column >= width) {
    return;
  }
  float sum[kTokensAtOnce][kCount] = {};
  for (int e = 0; e < experts; ++e) {
    const auto weights = load<kCount>(weight + int64_t{e} * width + column);
#pragma unroll
    for (int t = 0; t < kTokensAtOnce; ++t) {
      const int64_t token = first + t < tokens ? first + t : tokens - 1;
      const float factor = grad[token * experts + e];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sum[t][k] += factor * weights.at[k];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokensAtOnce; ++t) {
    Pack<T, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = narrow<T>(sum[t][k]);
    }
    if (first + t < tokens) {
      store(grad_x + (first + t) * width + column, result);
    }
  }
}

// Grid (strips, experts, columns). A block reads each x of its strip once for eight experts.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    weight_strips_kernel(const float* __restrict__ grad,  // [tokens, experts]
                         const T* __restrict__ x,         // [tokens, width]
                         float* __restrict__ strips,      // [strip_count, experts, width]
                         int64_t tokens, int width, int experts, int strip_count) {
  const int64_t across = ceil_div(width, kThreads * kCount);
  const int64_t tiles = ceil_div(experts, kExpertsAtOnce);
  const int64_t column = (blockIdx.x % across * kThreads + threadIdx.x) * kCount;
  const int tile = static_cast<int>(blockIdx.x / across % tiles) * kExpertsAtOnce;
  const int64_t strip = blockIdx.x / across / tiles;
  if (column >= width) {
    return;
  }
  float sum[kExpertsAtOnce][kCount] = {};
  const int64_t end = tokens * (strip + 1) / strip_count;
#pragma unroll 4
  for (int64_t token = tokens * strip / strip_count; token < end; ++token) {
    const auto values = load<kCount>(x + token * width + column);
#pragma unroll
    for (int e = 0; e < kExpertsAtOnce; ++e) {
      const int expert = tile + e < experts ? tile + e : experts - 1;
      const float factor = grad[token * experts + expert];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sum[e][k] += factor * widen(values.at[k]);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kExpertsAtOnce; ++e) {
    Pack<float, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = sum[e][k];
    }
    if (tile + e < experts) {
      store(strips + (strip * experts + tile + e) * width + column, result);
    }
  }
}

template <typename T, int kCount>
void run_gradients(const RouterLogitsBackwardArgs& args, void* stream) {
  const int64_t across = ceil_div(args.width, kThreads * kCount);
  if (args.grad_x != nullptr) {
    launch(input_gradient_kernel<T, kCount>, ceil_div(args.tokens, kTokensAtOnce) * across,
           kThreads, stream, args.grad, args.weight, args.grad_x, args.tokens, args.width,
           args.experts);
  }
  if (args.grad_weight != nullptr) {
    const int64_t strip_count = router_strips(args.tokens, args.experts);
    launch(weight_strips_kernel<T, kCount>,
           strip_count * ceil_div(args.experts, kExpertsAtOnce) * across, kThreads, stream,
           args.grad, args.x, args.strips, args.tokens, args.width, args.experts, strip_count);
    launch(add_strips_kernel<float>, ceil_div(args.experts * args.width, kThreads), kThreads,
           stream, args.strips, args.grad_weight, args.experts * args.width, strip_count);
  }
}

template <typename T>
void run_gradients(const RouterLogitsBackwardArgs& args, void* stream) {
  fits_vectors<kWidest<T>>(args.width, args.x, args.weight, args.grad_x, args.grad_weight,
                           args.strips)
      ? run_gradients<T, kWidest<T>>(args, stream)
      : run_gradients<T, 1>(args, stream);
}

// Writes the softmax of a token's logits. Lane l holds the logits of experts l, l + 32, and so on.
template <int kPerLane>
__device__ void write_scores(const float (&logit)[kPerLane], float* scores, int experts) {
  const int lane = threadIdx.x % kLanes;
  float max = -HUGE_VALF, sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    max = lane + i * kLanes < experts ? fmaxf(max, logit[i]) : max;
  }
  max = warp_max(max);
  float share[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    share[i] = lane + i * kLanes < experts ? expf(logit[i] - max) : 0.0F;
    sum += share[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + i * kLanes < experts) {
      scores[lane + i * kLanes] = share[i] / sum;
    }
  }
}

// The second launch bound is the number of blocks per multiprocessor that fit without spilling.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads, kPerLane <= 2   ? 8
                                            : kPerLane == 4 ? 6
                                                            : 4)
    choices_kernel(RouterChoicesArgs args) {
  const RouterShape& shape = args.shape;
  __shared__ int32_t shared[kSharedCounts];
  const int experts = static_cast<int>(shape.experts), ranks = static_cast<int>(shape.ranks);
  const int choices = static_cast<int>(shape.choices);
  const BlockCounts<int32_t> requests{shared, args.requested, choices * experts * ranks};
  requests.begin();
  const int lane = threadIdx.x % kLanes, local = experts / ranks;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; t < shape.tokens;
       t += step) {
    float logit[kPerLane];
    uint64_t key[kPerLane];  // 0: no expert, or already chosen
    uint64_t best_local = 0;
    const int rank = args.source_rank[t];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane + i * kLanes;
      logit[i] = expert < experts ? args.logits[t * experts + expert] : 0.0F;
      key[i] = expert < experts ? ranked_key(__float_as_uint(logit[i]), expert) : 0;
      const bool is_local = expert / local == rank;  // always false for padding
      best_local = is_local && key[i] > best_local ? key[i] : best_local;
    }
    write_scores(logit, args.scores + t * experts, experts);
    best_local = warp_max(best_local);
    if (lane == 0) {
      args.local_choice[t] = rank < ranks ? static_cast<int32_t>(key_index(best_local)) : -1;
    }
    for (int c = 0; c < choices; ++c) {
      uint64_t best = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        best = key[i] > best ? key[i] : best;
      }
      best = warp_max(best);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        key[i] = key[i] == best ? 0 : key[i];
      }
      const int expert = static_cast<int>(key_index(best));
      if (lane == 0) {
        args.choice[t * choices + c] = expert;
        if (rank < ranks) {
          requests.add((c * experts + expert) * ranks + rank);
        }
      }
    }
  }
  requests.end();
}

}  // namespace

void router_logits_cuda(const RouterLogitsArgs& args, void* stream) {
  args.is_bf16 ? run_logits<__nv_bfloat16>(args, stream) : run_logits<float>(args, stream);
}

void router_logits_backward_cuda(const RouterLogitsBackwardArgs& args, void* stream) {
  args.is_bf16 ? run_gradients<__nv_bfloat16>(args, stream) : run_gradients<float>(args, stream);
}

void router_choices_cuda(const RouterChoicesArgs& args, void* stream) {
  const RouterShape& shape = args.shape;
  const auto kernel = for_experts(shape.experts, choices_kernel<1>, choices_kernel<2>,
                                  choices_kernel<4>, choices_kernel<8>);
  set_bytes(args.requested, 0, shape.choices * shape.experts * shape.ranks, stream);
  constexpr int64_t kMaxBlocks = 1024;  // limits the atomics that add the counters of the blocks
  const int64_t blocks = ceil_div(shape.tokens, kWarps);
  launch(kernel, blocks < kMaxBlocks ? blocks : kMaxBlocks, kThreads, stream, args);
}

}  // namespace moe::kernels
