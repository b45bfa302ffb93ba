#include "kernels/ops/router.h"

#include <ATen/Parallel.h>

#include <bit>
#include <functional>
#include <vector>

#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

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

// Calls each(token, keys of its experts, best first) for all tokens, in parallel.
template <typename Each>
void for_each_token(const float* logits, int64_t tokens, int64_t experts, Each each) {
  // About ten microseconds per thread.
  const int64_t grain = std::max<int64_t>(16, 2048 / std::max<int64_t>(1, experts));
  at::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      for (size_t e = 0; e < keys.size(); ++e) {
        keys[e] = ranked_key(std::bit_cast<uint32_t>(logits[t * experts + static_cast<int64_t>(e)]),
                             static_cast<uint32_t>(e));
      }
      sort_keys(keys);
      each(t, keys);
    }
  });
}

// Returns the best expert on `rank`, which holds `local` experts.
int32_t best_local(const std::vector<uint64_t>& keys, int64_t rank, int64_t local) {
  const auto best = std::find_if(keys.begin(), keys.end(), [=](uint64_t key) {
    return static_cast<int64_t>(key_index(key)) / local == rank;
  });
  return static_cast<int32_t>(key_index(*best));
}

}  // namespace

void expert_order_cpu(const ExpertOrderArgs& args) {
  for_each_token(args.logits, args.tokens, args.experts, [&](int64_t t, const auto& keys) {
    std::transform(keys.begin(), keys.end(), args.order + t * args.experts, key_index);
  });
}

void router_choices_cpu(const RouterChoicesArgs& args) {
  const RouterShape& shape = args.shape;
  const int64_t local = shape.experts / shape.ranks;
  for_each_token(args.logits, shape.tokens, shape.experts, [&](int64_t t, const auto& keys) {
    std::transform(keys.begin(), keys.begin() + shape.choices, args.choice + t * shape.choices,
                   key_index);
    const int64_t source_rank = args.source_rank[t];
    args.local_choice[t] = source_rank < shape.ranks ? best_local(keys, source_rank, local) : -1;
  });
}

}  // namespace moe::kernels
