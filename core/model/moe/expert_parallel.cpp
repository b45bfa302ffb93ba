// Homes of a process's tokens, and the one exchange of counts that a forward needs.

#include "core/model/moe/expert_parallel.h"

#include <algorithm>

#include "core/base/error.h"

namespace moe::model {

namespace {

int64_t with_tokens(const std::vector<int64_t>& rank_tokens) {
  return std::count_if(rank_tokens.begin(), rank_tokens.end(),
                       [](int64_t tokens) { return tokens > 0; });
}

std::vector<int64_t> count_by_rank(const route::RoutingGroup& group) {
  std::vector<int64_t> counts(static_cast<size_t>(group.ranks), 0);
  for (const int64_t home : group.home) {
    if (home >= 0) {
      ++counts.at(static_cast<size_t>(home));
    }
  }
  return counts;
}

}  // namespace

TokenSpread::TokenSpread(route::RoutingGroup tokens_here)
    : here(std::move(tokens_here)), rank_tokens(count_by_rank(here)) {}

TokenSpread::TokenSpread(int64_t tokens, int64_t logical_ranks, const ExpertParallel& among)
    : parallel(among) {
  const int64_t processes = among.size();
  if (processes == 1) {
    *this = TokenSpread(route::spread_over_ranks(tokens, logical_ranks));
    parallel = among;
    return;
  }
  MOE_CHECK(among.group != nullptr && among.group->size() == processes,
            "experts of {} processes, and no group of as many", processes);
  MOE_CHECK(logical_ranks % processes == 0, "{} logical ranks on {}", logical_ranks, processes);
  const int64_t local = logical_ranks / processes, first = among.place() * local;
  const route::RoutingGroup spread = route::spread_over_ranks(tokens, local);
  here.ranks = logical_ranks;
  for (const int64_t home : spread.home) {
    here.home.push_back(first + home);
  }
  for (const auto& counts : dist::gather_numbers(*among.group, count_by_rank(spread))) {
    rank_tokens.insert(rank_tokens.end(), counts.begin(), counts.end());
  }
  const int64_t everywhere = with_tokens(rank_tokens);
  loss_share = everywhere == 0 ? 0
                               : static_cast<double>(with_tokens(count_by_rank(spread))) /
                                     static_cast<double>(everywhere);
}

std::vector<int64_t> Sharing::capacity(int64_t experts) const {
  std::vector<int64_t> slots;
  if (router.family == route::Family::kTopK && router.capacity_factor) {
    for (const int64_t tokens : spread.rank_tokens) {
      slots.push_back(route::capacity_slots(router.capacity_factor, tokens, experts));
    }
  }
  return slots;
}

}  // namespace moe::model
