// row_gates.h on CUDA: a warp a token, its lanes share out the experts; the few cells of a token
// are walked through by all lanes alike.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/row_gates.h"

namespace moe::kernels {

namespace {

constexpr int kWarps = kThreads / kLanes;

struct Softmax {
  float most, sum;
};

// Of a row of logits, for all lanes alike.
__device__ Softmax softmax_of(const float* row, int experts) {
  const int lane = threadIdx.x % kLanes;
  float most = -HUGE_VALF, sum = 0;
  for (int e = lane; e < experts; e += kLanes) {
    most = fmaxf(most, row[e]);
  }
  most = warp_max(most);
  for (int e = lane; e < experts; e += kLanes) {
    sum += expf(row[e] - most);
  }
  return {most, warp_sum(sum)};
}

// The same over the experts of a token's cells, each as often as its row counts.
__device__ Softmax softmax_of_cells(const float* row, const int32_t* expert, const int32_t* times,
                                    int columns) {
  float most = -HUGE_VALF, sum = 0;
  for (int c = 0; c < columns; ++c) {
    most = expert[c] >= 0 ? fmaxf(most, row[expert[c]]) : most;
  }
  for (int c = 0; c < columns; ++c) {
    sum += expert[c] >= 0 ? static_cast<float>(times[c]) * expf(row[expert[c]] - most) : 0.0F;
  }
  return {most, sum};
}

__global__ void __launch_bounds__(kThreads) gates_kernel(GateShape shape,
                                                         const float* logits,    // [T, E]
                                                         const int32_t* expert,  // [T, C]
                                                         const int32_t* times,   // [T, C]
                                                         float* weight) {        // [T, C]
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (t >= shape.tokens) {
    return;  // the whole warp
  }
  const int columns = static_cast<int>(shape.columns);
  const float* row = logits + t * shape.experts;
  const int32_t* experts = expert + t * columns;
  const int32_t* counts = times + t * columns;
  Softmax all = {0, 1};
  if (shape.rule == GateRule::kSelected) {
    all = softmax_of_cells(row, experts, counts, columns);
  } else if (shape.rule == GateRule::kProbability) {
    all = softmax_of(row, static_cast<int>(shape.experts));
  }
  for (int c = threadIdx.x % kLanes; c < columns; c += kLanes) {
    float w = 0;
    if (experts[c] >= 0) {
      const float a = row[experts[c]], n = static_cast<float>(counts[c]);
      w = shape.rule == GateRule::kPositive ? n * fmaxf(0.0F, a) : n * expf(a - all.most) / all.sum;
    }
    weight[t * columns + c] = w;
  }
}

__global__ void __launch_bounds__(kThreads)
    gates_backward_kernel(GateShape shape,
                          const float* logits,       // [T, E]
                          const int32_t* expert,     // [T, C]
                          const int32_t* times,      // [T, C]
                          const float* weight,       // [T, C]
                          const float* grad_weight,  // [T, C]
                          float* grad_logits) {      // [T, E]
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (t >= shape.tokens) {
    return;  // the whole warp
  }
  const int columns = static_cast<int>(shape.columns), experts = static_cast<int>(shape.experts);
  const float* row = logits + t * shape.experts;
  const int64_t first = t * columns;
  const bool is_positive = shape.rule == GateRule::kPositive;
  const bool through_all = shape.straight_through || shape.rule == GateRule::kProbability;
  Softmax all = {0, 1};
  if (through_all && !is_positive) {
    all = softmax_of(row, experts);
  }
  float sum = 0;  // of w U
  for (int c = 0; c < columns; ++c) {
    sum += expert[first + c] >= 0 ? weight[first + c] * grad_weight[first + c] : 0.0F;
  }
  for (int e = threadIdx.x % kLanes; e < experts; e += kLanes) {
    float direct = 0, own = 0, positive = 0;
    for (int c = 0; c < columns; ++c) {
      if (expert[first + c] == e) {
        const float upstream = grad_weight[first + c];
        direct += weight[first + c] * upstream;
        own += weight[first + c];
        positive += row[e] > 0 ? static_cast<float>(times[first + c]) * upstream : 0.0F;
      }
    }
    const float base = through_all ? expf(row[e] - all.most) / all.sum : own;
    grad_logits[t * experts + e] = is_positive ? positive : direct - base * sum;
  }
}

}  // namespace

void row_gates_cuda(const GateShape& shape, const float* logits, const int32_t* expert,
                    const int32_t* times, float* weight, void* stream) {
  launch(gates_kernel, ceil_div(shape.tokens, kWarps), kThreads, stream, shape, logits, expert,
         times, weight);
}

void row_gates_backward_cuda(const GateShape& shape, const float* logits, const int32_t* expert,
                             const int32_t* times, const float* weight, const float* grad_weight,
                             float* grad_logits, void* stream) {
  launch(gates_backward_kernel, ceil_div(shape.tokens, kWarps), kThreads, stream, shape, logits,
         expert, times, weight, grad_weight, grad_logits);
}

}  // namespace moe::kernels
