// What router.h decides token by token, on the CPU: threads share out the tokens.

#include "kernels/ops/router.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "kernels/ops/order_key.h"

namespace moe::kernels {

namespace {

// Tokens that one thread takes at least: some ten microseconds of them.
int64_t least_tokens(int64_t experts) {
  return std::max<int64_t>(16, 2048 / std::max<int64_t>(1, experts));
}

// Larger first. A few are sorted faster by insertion.
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

// The experts of one token's logits, best first, as keys.
void rank_experts(const float* logits, std::vector<uint64_t>& keys) {
  for (size_t e = 0; e < keys.size(); ++e) {
    keys[e] = ranked_key(std::bit_cast<uint32_t>(logits[e]), static_cast<uint32_t>(e));
  }
  sort_keys(keys);
}

// The first of them that is at home on `rank`, which holds `local` experts.
int32_t best_at_home(const std::vector<uint64_t>& keys, int64_t rank, int64_t local) {
  const auto found = std::find_if(keys.begin(), keys.end(), [=](uint64_t key) {
    return static_cast<int64_t>(index_of_key(key)) / local == rank;
  });
  return static_cast<int32_t>(index_of_key(*found));
}

}  // namespace

void expert_order_cpu(const ExpertOrderArgs& args) {
  const int64_t experts = args.experts;
  at::parallel_for(0, args.tokens, least_tokens(experts), [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      rank_experts(args.logits + t * experts, keys);
      std::transform(keys.begin(), keys.end(), args.order + t * experts, index_of_key);
    }
  });
}

void router_choices_cpu(const RouterChoicesArgs& args) {
  const RouterShape& shape = args.shape;
  const int64_t experts = shape.experts, local = experts / shape.ranks;
  at::parallel_for(0, shape.tokens, least_tokens(experts), [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      rank_experts(args.logits + t * experts, keys);
      std::transform(keys.begin(), keys.begin() + shape.choices, args.choice + t * shape.choices,
                     index_of_key);
      const int64_t home = args.home[t];
      args.at_home[t] = home < shape.ranks ? best_at_home(keys, home, local) : -1;
    }
  });
}

}  // namespace moe::kernels
