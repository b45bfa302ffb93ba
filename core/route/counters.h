#pragma once
// Routing counters: counted on the device, copied to the host once per step, and printed as JSON
// and as a table (README.md, "Counters"). Padding is not counted.
//
// T tokens, E experts, W logical ranks, D model width.

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/plan.h"

namespace moe::route {

// Counts of one layer and one group of tokens. If tokens do not request k experts
// (RouterFamily::has_token_requests), `requests` is the number of rows. Slots are counted only if
// the family has slots (RouterFamily::has_slots).
struct CounterValues {
  int64_t tokens = 0;
  int64_t requests = 0, dropped_requests = 0;  // of the first k choices
  int64_t dropped_tokens = 0;                  // without an accepted request or a fill-in
  int64_t unserved_tokens = 0;                 // without any expert, IR included
  int64_t fr_requests = 0, fr_filled = 0, fr_rejected = 0;
  int64_t ir_tokens = 0;
  int64_t slots_total = 0, slots_used = 0, padding = 0;
  // Rows of D numbers that a forward pass sends to other logical ranks, which send as many back.
  // With a capacity factor, rank r sends all its slots at the E - E/W experts of other ranks,
  // including unused ones. Dropless routers send only rows of the plan. IR rows are not sent.
  int64_t rows_sent = 0;
  double entropy_sum = 0;  // sum over tokens of the entropy of the softmax in nats; 0 for ReLU
  std::vector<int64_t> tokens_per_expert;    // [E] number of rows, FR and IR included
  std::vector<int64_t> requests_per_expert;  // [E] first k choices; empty if no bias
  std::vector<int64_t> rank_dropped;         // [W] dropped requests by source rank
  std::vector<int64_t> rank_ir;              // [W] IR tokens by source rank

  void add(const CounterValues& other);  // sum over micro-batches, or over layers for a total
  int64_t rows() const;                  // sum over experts
  double experts_per_token() const;      // rows / tokens; 0 without tokens
  double load_max_over_mean() const;     // of the experts' rows, 1 = balanced; 0 without rows
  int64_t dead_experts() const;          // experts without a row
  double sparsity() const;               // 1 - rows / (tokens * E); 0 without tokens
};

// A count among the members of CounterValues and its name in JSON.
struct CounterField {
  const char* name;
  int64_t CounterValues::*member;
};
// Returns the fields `tokens` to `rows_sent`, in the order of their declarations.
std::span<const CounterField> counter_fields();

// Converts counters to a list of numbers, for an all-reduce, and back.
std::vector<double> pack_counters(const CounterValues& values);
CounterValues unpack_counters(const std::vector<double>& numbers, int64_t experts, int64_t ranks);

// Counters of one layer that are still on the device.
struct Counters {
  CounterValues host_values;            // values known on the host: tokens, requests, slots
  bool has_token_requests = false;      // RouterFamily::has_token_requests
  at::Tensor tokens_per_expert;         // [E] i64
  at::Tensor counted;                   // [(W + 1) * 8 + 2] i64, kernels::PlanCountsArgs::counted
  at::Tensor requests_per_expert = {};  // [E] i64, undefined without a bias
};

// Counts a finished plan.
Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings);
// Returns the counters of a plan that a kernel has counted (Counters::counted).
Counters make_counters(const RouteInput& input, const Plan& plan, const RouterSettings& settings,
                       const at::Tensor& counted);

// Reads the counters of all layers in one transfer.
std::vector<CounterValues> read_counters(const std::vector<Counters>& counters);

// Returns [T, 3 + E] i64, for statistics by token: the number of rows of each token by kind (one of
// its k choices, fill-in, IR), then by expert.
at::Tensor count_rows_by_token(const RouteInput& input, const Plan& plan);

// Counters of all layers.
struct CounterTotal {
  CounterValues sum;         // over layers; tokens_per_expert has no meaning
  int64_t tokens = 0;        // of one layer
  double worst_load = 0;     // maximum of load_max_over_mean() over layers
  int64_t dead_experts = 0;  // sum over layers
  double sparsity = 0;       // mean over layers
};
CounterTotal sum_layers(const std::vector<CounterValues>& layers);

// Returns the counters by their names in metrics.jsonl and statistics files, then dropped_share (of
// requests), filled_share (of FR requests), ir_share and unserved_share (of tokens), padding_share
// (of slots), unsuccessful_share = (dropped + FR rejected) / (requests + FR requests)
// (Rectify-Router, C.2), entropy (mean over tokens), experts_per_token, counts per rank with
// maximum and mean, sparsity, load_max_over_mean, dead_experts, load [E]. Shares are 0..1.
// bytes_sent = 2 * rows_sent * `row_bytes` (D * bytes of a number; 0 omits it) covers both
// directions of the forward pass.
OrderedJson to_json(const CounterValues& counters, int64_t row_bytes);
// Overload for all layers, without "load". Counts are sums over layers, except that "tokens" counts
// those of one layer. Shares are ratios of the sums.
OrderedJson to_json(const CounterTotal& total, int64_t row_bytes);

// Returns [{"layer": number, counters}, ...].
OrderedJson layers_json(const std::vector<int64_t>& numbers,
                        const std::vector<CounterValues>& layers, int64_t row_bytes);

// Returns part / whole; 0 if `whole` is 0.
double ratio(double part, double whole);

// Returns a table with one line per layer and one for all layers. Shares are in per cent. Columns
// that do not apply to the router are omitted.
std::string routing_table(const std::vector<int64_t>& numbers,
                          const std::vector<CounterValues>& layers);

}  // namespace moe::route
