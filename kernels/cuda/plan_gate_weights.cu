// plan_gate_weights.h on CUDA: one thread per row, or one warp per token with lanes along the
// experts.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/plan_gate_weights.h"

namespace moe::kernels {

namespace {

using Counter = unsigned long long;  // NOLINT(google-runtime-int): type of 64-bit atomicAdd

__global__ void __launch_bounds__(kThreads) count_rows_kernel(PlanCountsArgs args) {
  __shared__ int32_t shared[kSharedCounts];
  const PlanRows& plan = args.plan;
  const BlockCounts<Counter> kinds{shared, reinterpret_cast<Counter*>(args.counted),
                                   static_cast<int>((plan.ranks + 1) * kRowKinds)};
  kinds.begin();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < plan.rows && plan.expert[row] < plan.experts) {
    const int64_t token = plan.token[row], source_rank = plan.source_rank[token];
    // A choice and a rectification can be the same (token, expert).
    atomicAdd(args.count + token * plan.experts + plan.expert[row],
              static_cast<float>(plan.count[row]));
    kinds.add(source_rank * kRowKinds + row_kind(args, row, source_rank));
  }
  kinds.end();
}

// Calls each(i, e) for the kPerLane experts e = lane, lane + 32, ... of this lane. `e` may be >= E.
template <int kPerLane, typename Each>
__device__ void for_each_expert(Each each) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    each(i, static_cast<int>(threadIdx.x % kLanes) + i * kLanes);
  }
}

// Loads a token's numbers [E] of the experts of this lane; `none` for indices >= E.
template <int kPerLane>
__device__ void load_experts(const float* numbers, int experts, float none, float (&to)[kPerLane]) {
  for_each_expert<kPerLane>([&](int i, int e) { to[i] = e < experts ? numbers[e] : none; });
}

template <int kPerLane>
__device__ float experts_max(const float (&numbers)[kPerLane]) {
  float max = numbers[0];
  for_each_expert<kPerLane>([&](int i, int) { max = fmaxf(max, numbers[i]); });
  return warp_max(max);
}

template <int kPerLane>
__device__ float experts_sum(const float (&numbers)[kPerLane]) {
  float sum = 0;
  for_each_expert<kPerLane>([&](int i, int) { sum += numbers[i]; });
  return warp_sum(sum);
}

// Counts the tokens that have a row and sums the entropies sum_j g_j (a_max - a_j) - ln g_max.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads) count_tokens_kernel(PlanCountsArgs args) {
  __shared__ double part[kWarps];
  __shared__ int32_t served_part[kWarps];
  const PlanRows& plan = args.plan;
  const int experts = static_cast<int>(plan.experts), lane = threadIdx.x % kLanes;
  double entropy = 0;
  int32_t served = 0;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; t < plan.tokens;
       t += step) {
    float logit[kPerLane], score[kPerLane], count[kPerLane], term[kPerLane];
    load_experts(args.logits + t * experts, experts, -HUGE_VALF, logit);
    load_experts(args.scores + t * experts, experts, 0.0F, score);
    load_experts(args.count + t * experts, experts, 0.0F, count);
    const float highest = experts_max(logit);
    for_each_expert<kPerLane>(
        [&](int i, int e) { term[i] = e < experts ? score[i] * (highest - logit[i]) : 0.0F; });
    const float token_entropy = experts_sum(term) - logf(experts_max(score));
    entropy += plan.source_rank[t] < plan.ranks ? token_entropy : 0.0F;
    served += experts_max(count) > 0 ? 1 : 0;
  }
  const bool is_first = lane == 0;  // all lanes of a warp have the same value
  entropy = block_sum(is_first ? entropy : 0.0, part);
  served = block_sum(is_first ? served : 0, served_part);
  if (threadIdx.x == 0) {
    args.sums[blockIdx.x] = entropy;
    const int64_t cells = (plan.ranks + 1) * kRowKinds;
    atomicAdd(reinterpret_cast<Counter*>(args.counted) + cells, static_cast<Counter>(served));
  }
}

// Returns the sum of `count` numbers `stride` apart, in a fixed order, to all threads of the block.
__device__ double sum_up(const double* numbers, int64_t count, int64_t stride, double* part) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += numbers[i * stride];
  }
  return block_sum(sum, part);
}

__global__ void __launch_bounds__(kThreads) sum_counts_kernel(PlanCountsArgs args, int64_t sums) {
  __shared__ double part[kWarps];
  const double entropy = sum_up(args.sums, sums, 1, part);
  if (threadIdx.x == 0) {
    double* to = reinterpret_cast<double*>(args.counted + (args.plan.ranks + 1) * kRowKinds + 1);
    *to = entropy;
  }
}

__global__ void __launch_bounds__(kThreads) count_choices_kernel(PlanGateWeightsArgs args) {
  __shared__ int32_t shared[kSharedCounts];
  const PlanRows& plan = args.plan;
  const int64_t pairs = plan.ranks * plan.experts;
  const BlockCounts<int32_t> chosen{shared, args.chosen, static_cast<int>(pairs + plan.ranks)};
  chosen.begin();
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t < plan.tokens && plan.source_rank[t] < plan.ranks) {
    const int64_t source_rank = plan.source_rank[t];
    chosen.add(pairs + source_rank);
    for (int64_t choice = 0; choice < args.options.lb_choices; ++choice) {
      chosen.add(source_rank * plan.experts + args.by_logit[t * plan.experts + choice]);
    }
  }
  chosen.end();
}

// Replaces the logits by their softmax and returns the log-sum-exp.
template <int kPerLane>
__device__ float softmax(float (&logit)[kPerLane]) {
  const float highest = experts_max(logit);
  for_each_expert<kPerLane>([&](int i, int) { logit[i] = expf(logit[i] - highest); });
  const float sum = experts_sum(logit);
  for_each_expert<kPerLane>([&](int i, int) { logit[i] /= sum; });
  return highest + logf(sum);
}

// Replaces the logits by n e^a / sum of n e^a over the experts with count n > 0.
template <int kPerLane>
__device__ void normalised_weights(float (&logit)[kPerLane], const float (&count)[kPerLane]) {
  for_each_expert<kPerLane>([&](int i, int) { logit[i] = count[i] > 0 ? logit[i] : -HUGE_VALF; });
  const float highest = experts_max(logit);
  for_each_expert<kPerLane>(
      [&](int i, int) { logit[i] = count[i] > 0 ? expf(logit[i] - highest) * count[i] : 0.0F; });
  const float sum = experts_sum(logit);
  const float divisor = sum == 0 ? 1.0F : sum;  // 0: a token without experts
  for_each_expert<kPerLane>([&](int i, int) { logit[i] /= divisor; });
}

// Writes balance_factor() of the experts of this lane; 0 for indices >= E.
template <int kPerLane>
__device__ void balance_factors(const PlanRows& plan, const int32_t* chosen, int64_t source_rank,
                                float weight, float (&to)[kPerLane]) {
  for_each_expert<kPerLane>([&](int i, int e) {
    to[i] = e < plan.experts ? balance_factor(plan, chosen, source_rank, e, weight) : 0.0F;
  });
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) gate_weights_kernel(PlanGateWeightsArgs args) {
  __shared__ double part[kWarps];
  const PlanRows& plan = args.plan;
  const int experts = static_cast<int>(plan.experts), lane = threadIdx.x % kLanes;
  double balance = 0, z = 0;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; t < plan.tokens;
       t += step) {
    float weight[kPerLane], count[kPerLane], probability[kPerLane];
    load_experts(args.logits + t * experts, experts, -HUGE_VALF, probability);
    load_experts(args.count + t * experts, experts, 0.0F, count);
    for_each_expert<kPerLane>([&](int i, int) { weight[i] = probability[i]; });  // the logits
    const float log_sum = softmax(probability);
    if (args.options.normalise) {
      normalised_weights(weight, count);
    }
    for_each_expert<kPerLane>([&](int i, int e) {
      if (e < experts) {
        args.combine[t * experts + e] =
            args.options.normalise ? weight[i] : probability[i] * count[i];
      }
    });
    const int64_t source_rank = plan.source_rank[t];
    if (source_rank < plan.ranks) {  // warp-uniform
      const float share = token_weight(plan, args.options, args.chosen, source_rank);
      balance_factors(plan, args.chosen, source_rank, share, count);
      for_each_expert<kPerLane>([&](int i, int) { count[i] *= probability[i]; });
      balance += experts_sum(count);
      z += share * log_sum * log_sum;
    }
  }
  const bool is_first = lane == 0;
  balance = block_sum(is_first ? balance : 0.0, part);
  z = block_sum(is_first ? z : 0.0, part);
  if (threadIdx.x == 0) {
    args.sums[2 * blockIdx.x] = balance;
    args.sums[2 * blockIdx.x + 1] = z;
  }
}

// One thread per row. The last block sums the losses instead.
__global__ void __launch_bounds__(kThreads)
    row_weights_kernel(PlanGateWeightsArgs args, int64_t sums) {
  __shared__ double part[kWarps];
  const PlanRows& plan = args.plan;
  if (blockIdx.x + 1 == gridDim.x) {
    const double balance = sum_up(args.sums, sums, 2, part);
    const double z = sum_up(args.sums + 1, sums, 2, part);
    if (threadIdx.x == 0) {
      *args.load_balance = static_cast<float>(balance);
      if (args.z != nullptr) {
        *args.z = static_cast<float>(z);
      }
    }
    return;
  }
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= plan.rows) {
    return;
  }
  float weight = 0;
  if (plan.expert[row] < plan.experts) {
    const int64_t cell = plan.token[row] * plan.experts + plan.expert[row];
    weight = args.combine[cell] * row_share(plan, args.count, row);
  }
  args.weights[row] = weight;
}

__global__ void __launch_bounds__(kThreads)
    row_weights_backward_kernel(PlanGateWeightsBackwardArgs args) {
  const PlanRows& plan = args.plan;
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < plan.rows && plan.expert[row] < plan.experts) {
    const int64_t cell = plan.token[row] * plan.experts + plan.expert[row];
    // Deterministic: adds at most two numbers to 0.
    atomicAdd(args.scratch + cell, args.grad_weights[row] * row_share(plan, args.count, row));
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    gate_weights_backward_kernel(PlanGateWeightsBackwardArgs args) {
  const PlanRows& plan = args.plan;
  const int experts = static_cast<int>(plan.experts);
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (t >= plan.tokens) {
    return;  // warp-uniform
  }
  float weight[kPerLane], grad_gate[kPerLane], probability[kPerLane];
  load_experts(args.logits + t * experts, experts, -HUGE_VALF, probability);
  load_experts(args.combine + t * experts, experts, 0.0F, weight);
  load_experts(args.scratch + t * experts, experts, 0.0F, grad_gate);
  const float log_sum = softmax(probability);
  for_each_expert<kPerLane>([&](int i, int e) {
    if (args.grad_combine != nullptr && e < experts) {
      grad_gate[i] += args.grad_combine[t * experts + e];
    }
    grad_gate[i] *= weight[i];
  });
  const float all = experts_sum(grad_gate);
  const bool through_all = args.options.straight_through || !args.options.normalise;
  const int64_t source_rank = plan.source_rank[t];
  const bool is_padding = source_rank >= plan.ranks;
  const float share = is_padding ? 0 : token_weight(plan, args.options, args.chosen, source_rank);
  float factor[kPerLane] = {};
  float mean = 0, grad_lse = 0;
  if (!is_padding && args.grad_load_balance != nullptr) {  // warp-uniform
    balance_factors(plan, args.chosen, source_rank, share * *args.grad_load_balance, factor);
    float term[kPerLane];
    for_each_expert<kPerLane>([&](int i, int) { term[i] = factor[i] * probability[i]; });
    mean = experts_sum(term);
  }
  if (!is_padding && args.grad_z != nullptr) {
    grad_lse = 2 * share * log_sum * *args.grad_z;
  }
  for_each_expert<kPerLane>([&](int i, int e) {
    if (e < experts) {
      const float gates_term = grad_gate[i] - (through_all ? probability[i] : weight[i]) * all;
      args.grad_logits[t * experts + e] =
          gates_term + probability[i] * (factor[i] - mean + grad_lse);
    }
  });
}

}  // namespace

void plan_counts_cuda(const PlanCountsArgs& args, void* stream) {
  const PlanRows& plan = args.plan;
  const auto count_tokens =
      for_experts(plan.experts, count_tokens_kernel<1>, count_tokens_kernel<2>,
                  count_tokens_kernel<4>, count_tokens_kernel<8>);
  const int64_t cells = (plan.ranks + 1) * kRowKinds, sums = plan_gate_weights_sums(plan.tokens);
  set_bytes(args.count, 0, plan.tokens * plan.experts, stream);
  set_bytes(args.counted, 0, cells + 2, stream);
  launch(count_rows_kernel, ceil_div(plan.rows, kThreads), kThreads, stream, args);
  launch(count_tokens, sums, kThreads, stream, args);
  launch(sum_counts_kernel, 1, kThreads, stream, args, sums);
}

void plan_gate_weights_cuda(const PlanGateWeightsArgs& args, void* stream) {
  const PlanRows& plan = args.plan;
  const auto gate_weights =
      for_experts(plan.experts, gate_weights_kernel<1>, gate_weights_kernel<2>,
                  gate_weights_kernel<4>, gate_weights_kernel<8>);
  const int64_t sums = plan_gate_weights_sums(plan.tokens);
  set_bytes(args.chosen, 0, plan.ranks * (plan.experts + 1), stream);
  launch(count_choices_kernel, ceil_div(plan.tokens, kThreads), kThreads, stream, args);
  launch(gate_weights, sums, kThreads, stream, args);
  launch(row_weights_kernel, ceil_div(plan.rows, kThreads) + 1, kThreads, stream, args, sums);
}

void plan_gate_weights_backward_cuda(const PlanGateWeightsBackwardArgs& args, void* stream) {
  const PlanRows& plan = args.plan;
  const auto gate_weights_backward =
      for_experts(plan.experts, gate_weights_backward_kernel<1>, gate_weights_backward_kernel<2>,
                  gate_weights_backward_kernel<4>, gate_weights_backward_kernel<8>);
  set_bytes(args.scratch, 0, plan.tokens * plan.experts, stream);
  if (args.grad_weights != nullptr) {
    launch(row_weights_backward_kernel, ceil_div(plan.rows, kThreads), kThreads, stream, args);
  }
  launch(gate_weights_backward, ceil_div(plan.tokens, kWarps), kThreads, stream, args);
}

}  // namespace moe::kernels
