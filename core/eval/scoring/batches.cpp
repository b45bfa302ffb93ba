#include "core/eval/scoring/batches.h"

#include <algorithm>
#include <numeric>

#include "core/model/llama/memory_need.h"
#include "core/route/router.h"

namespace moe::eval {

namespace {

constexpr int64_t kMost = 4096, kLeast = 512;
constexpr int64_t kLayerBytes = int64_t{1} << 30;

Batches pack_in_order(const std::vector<Request>& requests, const std::vector<size_t>& order,
                      int64_t limit) {
  Batches batches;
  int64_t filled = 0;
  for (const size_t index : order) {
    const int64_t tokens = requests[index].inputs();
    if (batches.empty() || filled + tokens > limit) {
      batches.emplace_back();
      filled = 0;
    }
    batches.back().push_back(index);
    filled += tokens;
  }
  return batches;
}

std::vector<size_t> file_order(const std::vector<Request>& requests) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

}  // namespace

int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router) {
  const int64_t per_token = model::layer_bytes_per_token(config, router);
  int64_t tokens = kMost;
  while (tokens > kLeast && tokens > kLayerBytes / per_token) {
    tokens /= 2;
  }
  return tokens;
}

int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router,
                          const MappedWeights& weights) {
  const int64_t usual = auto_batch_tokens(config, router);
  if (weights.bytes <= weights.available_memory) {
    return usual;
  }
  const int64_t experts = config.moe ? config.moe->experts : 1;
  const int64_t chosen =
      config.moe ? std::max<int64_t>(1, router.family->usual_experts(router, experts)) : 1;
  const int64_t wanted = kMost * std::max<int64_t>(1, experts / chosen);
  const auto room = static_cast<int64_t>(weights.available_memory / 4) /
                    model::layer_bytes_per_token(config, router);
  int64_t tokens = usual;
  while (2 * tokens <= std::min(wanted, room)) {
    tokens *= 2;
  }
  return tokens;
}

Batches batches_by_length(const std::vector<Request>& requests, int64_t batch_tokens) {
  std::vector<size_t> order = file_order(requests);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].inputs() > requests[b].inputs(); });
  return pack_in_order(requests, order, batch_tokens);
}

Batches groups_in_order(const std::vector<Request>& requests, int64_t group_tokens) {
  return pack_in_order(requests, file_order(requests), group_tokens);
}

bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router) {
  return config.moe && route::has_capacity(router);
}

PrefixBatches pack_prefix_groups(std::vector<PrefixGroup> groups, int64_t limit) {
  PrefixBatches batches;
  int64_t filled = 0;
  for (auto& group : groups) {
    const int64_t tokens = group.tokens();
    if (batches.empty() || filled + tokens > limit) {
      batches.emplace_back();
      filled = 0;
    }
    batches.back().push_back(std::move(group));
    filled += tokens;
  }
  for (auto& batch : batches) {
    std::stable_sort(batch.begin(), batch.end(),
                     [](const PrefixGroup& a, const PrefixGroup& b) { return a.root > b.root; });
  }
  return batches;
}

PrefixBatches each_alone(const std::vector<Request>& requests, const Batches& batches) {
  PrefixBatches groups;
  for (const auto& batch : batches) {
    auto& single = groups.emplace_back();
    for (const size_t index : batch) {
      single.push_back({index, requests[index].inputs(), {}, {{index, -1}}});
    }
  }
  return groups;
}

// Requests are sorted by their inputs, so that those with a common prefix are neighbours; a group
// grows as long as the prefix that it has in common with the next request is long enough to pay.

namespace {

// Branches are computed under one mask over root and branches, whose cost grows with their square.
constexpr int64_t kMostBranchTokens = 1024;

int64_t shared(const Request& a, const Request& b, int64_t most) {
  const int64_t limit = std::min({a.inputs(), b.inputs(), most});
  const auto end = a.tokens.begin() + limit;
  return std::mismatch(a.tokens.begin(), end, b.tokens.begin()).first - a.tokens.begin();
}

bool same_inputs(const Request& a, const Request& b) {
  return a.inputs() == b.inputs() && shared(a, b, a.inputs()) == a.inputs();
}

// The group of sorted requests begin..end-1, which share their first `root` inputs.
PrefixGroup make_prefix_group(const std::vector<Request>& requests,
                              const std::vector<size_t>& sorted, size_t begin, size_t end,
                              int64_t root) {
  PrefixGroup group;
  group.request = sorted[begin];
  group.root = root;
  for (size_t i = begin; i < end; ++i) {
    const Request& request = requests[sorted[i]];
    const int64_t rest = request.inputs() - root;
    const bool is_new =
        rest > 0 &&
        (group.branches.empty() || !same_inputs(requests[group.branches.back().request], request));
    if (is_new) {
      group.branches.push_back({sorted[i], rest});
    }
    group.members.push_back(
        {sorted[i], rest > 0 ? static_cast<int64_t>(group.branches.size()) - 1 : -1});
  }
  return group;
}

}  // namespace

int64_t PrefixGroup::tokens() const {
  return std::accumulate(branches.begin(), branches.end(), root,
                         [](int64_t sum, const Branch& branch) { return sum + branch.length; });
}

std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests) {
  std::vector<size_t> sorted(requests.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  const auto inputs_end = [&](size_t index) { return requests[index].tokens.end() - 1; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
    return std::lexicographical_compare(requests[a].tokens.begin(), inputs_end(a),
                                        requests[b].tokens.begin(), inputs_end(b));
  });
  std::vector<PrefixGroup> groups;
  for (size_t begin = 0; begin < sorted.size();) {
    const Request& first = requests[sorted[begin]];
    int64_t root = first.inputs(), rest = 0;
    size_t end = begin + 1;
    for (; end < sorted.size(); ++end) {
      const Request& next = requests[sorted[end]];
      const int64_t common = shared(first, next, root);
      // A shorter root makes the branches before this one longer.
      const int64_t longer = (root - common) * static_cast<int64_t>(end - begin);
      const int64_t with_it = rest + longer + next.inputs() - common;
      if (2 * common < root || longer > common || with_it > kMostBranchTokens) {
        break;
      }
      rest = with_it;
      root = common;
    }
    groups.push_back(make_prefix_group(requests, sorted, begin, end, root));
    begin = end;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const PrefixGroup& a, const PrefixGroup& b) {
    return a.tokens() != b.tokens() ? a.tokens() > b.tokens() : a.request < b.request;
  });
  return groups;
}

}  // namespace moe::eval
