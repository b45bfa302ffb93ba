#pragma once
// Counters by their names in metrics.jsonl, statistics files and tables (README.md, "What is
// counted"). Shares are 0..1.

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/counters.h"

namespace moe::route {

// Counts, then: dropped_share of requests, filled_share of FR requests, ir_share and unserved_share
// of tokens, padding_share of slots, unsuccessful_share = (dropped + FR rejected) / (requests + FR
// requests) (Rectify-Router, C.2), entropy (mean over tokens, nats), experts_per_token, sparsity,
// load_max_over_mean, dead_experts, `dropped_per_rank` and `ir_per_rank` with their max and mean,
// load [E]. bytes_sent = 2 x rows_sent x `row_bytes` (D x bytes of a number; 0 = left out): there
// and back in the forward pass.
OrderedJson to_json(const CounterValues& counters, int64_t row_bytes);

// The same of a model's layers together, without load: counts are sums over layers but for tokens,
// and shares are of those sums; load_max_over_mean is the worst layer's, sparsity the mean over
// layers.
OrderedJson to_json(const CounterTotal& total, int64_t row_bytes);

// [{"layer": number, counters}, ...]
OrderedJson layers_json(const std::vector<int64_t>& numbers,
                        const std::vector<CounterValues>& layers, int64_t row_bytes);

// part / whole; 0 where there is nothing.
double share_of(double part, double whole);

// A line a layer, and one for all: what a person wants to know of a router at a glance. Shares in
// per cent; columns where there is nothing to tell (no slots, no FR requests, no IR or unserved
// token) are left out.
std::string routing_table(const std::vector<int64_t>& numbers,
                          const std::vector<CounterValues>& layers);

}  // namespace moe::route
