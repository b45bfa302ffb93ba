// router.h on the CPU: choices of each token, in parallel over tokens.

#include "kernels/ops/router.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

// Minimum tokens per thread, about ten microseconds.
int64_t min_tokens(int64_t experts) {
  return std::max<int64_t>(16, 2048 / std::max<int64_t>(1, experts));
}

// Sorts in descending order. Insertion sort is faster for few keys.
void sort_keys(std::vector<uint64_t>& keys) {
  constexpr size_t kFew = 32;
  if (keys.size() > kFew) {
    std::sort(keys.begin(), keys.end(), std::greater<>());
    return;
  }
  for (size_t i = 1; i < keys.size(); ++i) {
    const uint64_t key = keys[i];
    size_t at = i;
    for (; at > 0 && keys[at - 1] < key; --at) {
      keys[at] = keys[at - 1];
    }
    keys[at] = key;
  }
}

void rank_experts(const float* logits, std::vector<uint64_t>& keys) {
  for (size_t e = 0; e < keys.size(); ++e) {
    keys[e] = ranked_key(std::bit_cast<uint32_t>(logits[e]), static_cast<uint32_t>(e));
  }
  sort_keys(keys);
}

// Returns the best expert on `rank`, which holds `local` experts.
int32_t best_local(const std::vector<uint64_t>& keys, int64_t rank, int64_t local) {
  const auto found = std::find_if(keys.begin(), keys.end(), [=](uint64_t key) {
    return static_cast<int64_t>(key_index(key)) / local == rank;
  });
  return static_cast<int32_t>(key_index(*found));
}

}  // namespace

void expert_order_cpu(const ExpertOrderArgs& args) {
  const int64_t experts = args.experts;
  at::parallel_for(0, args.tokens, min_tokens(experts), [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      rank_experts(args.logits + t * experts, keys);
      std::transform(keys.begin(), keys.end(), args.order + t * experts, key_index);
    }
  });
}

void router_choices_cpu(const RouterChoicesArgs& args) {
  const RouterShape& shape = args.shape;
  const int64_t experts = shape.experts, local = experts / shape.ranks;
  at::parallel_for(0, shape.tokens, min_tokens(experts), [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      rank_experts(args.logits + t * experts, keys);
      std::transform(keys.begin(), keys.begin() + shape.choices, args.choice + t * shape.choices,
                     key_index);
      const int64_t home = args.home[t];
      args.at_home[t] = home < shape.ranks ? best_local(keys, home, local) : -1;
    }
  });
}

}  // namespace moe::kernels
