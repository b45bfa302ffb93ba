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

}  // namespace moe::eval
