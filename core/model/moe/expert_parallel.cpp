#include "core/model/moe/expert_parallel.h"

#include <algorithm>

#include "core/base/error.h"

namespace moe::model {

namespace {

// How many of the ranks have tokens.
int64_t count_nonempty(const std::vector<int64_t>& rank_tokens) {
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

TokenSpread::TokenSpread(route::RoutingGroup local_tokens)
    : local(std::move(local_tokens)), rank_tokens(count_by_rank(local)) {}

TokenSpread::TokenSpread(int64_t tokens, int64_t logical_ranks, const ExpertParallel& among,
                         int64_t sequences)
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
  const int64_t local_ranks = logical_ranks / processes;
  const int64_t first_rank = among.ep_rank() * local_ranks;
  const route::RoutingGroup spread = route::spread_over_ranks(tokens, local_ranks);
  local.ranks = logical_ranks;
  for (const int64_t home : spread.home) {
    local.home.push_back(first_rank + home);
  }
  std::vector<int64_t> own = count_by_rank(spread);
  own.push_back(sequences);
  int64_t all_sequences = 0;
  for (const auto& counts : distributed::gather_numbers(*among.group, own)) {
    rank_tokens.insert(rank_tokens.end(), counts.begin(), counts.end() - 1);
    all_sequences += counts.back();
  }
  sequence_scale =
      all_sequences == 0 ? 0 : static_cast<double>(sequences) / static_cast<double>(all_sequences);
  const int64_t nonempty_ranks = count_nonempty(rank_tokens);
  loss_scale = nonempty_ranks == 0 ? 0
                                   : static_cast<double>(count_nonempty(count_by_rank(spread))) /
                                         static_cast<double>(nonempty_ranks);
}

}  // namespace moe::model
