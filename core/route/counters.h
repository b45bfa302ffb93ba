#pragma once
// What routing did, counted on the device and read back once a step (README.md, "What is counted").
// Padding tokens are never counted.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/route/rule.h"

namespace moe::route {

// The counts of one layer and one group of tokens on the host; add() sums over micro-batches, or
// over layers for a total. Where tokens do not request k experts, requests are the rows that there
// are; only routers whose experts have slots count slots.
struct CounterValues {
  int64_t tokens = 0;
  int64_t requests = 0, dropped_requests = 0;  // of the first k choices
  int64_t dropped_tokens = 0;                  // no expert accepted them (IR does not count)
  int64_t unserved_tokens = 0;                 // no expert at all: they pass by the residual
  int64_t fr_requests = 0, fr_filled = 0, fr_rejected = 0;
  int64_t ir_tokens = 0;
  int64_t slots_total = 0, slots_used = 0, padding = 0;
  // Rows of D numbers that the forward pass dispatches from one logical rank to another; as many
  // come back. A router with a capacity factor sends its whole [E, C_r] buffers, padding included:
  // the slots that rank r has at the E - E/W experts of others, whoever fills them. The dropless
  // ones send the rows they have for such experts. IR stays at home. So bytes sent = 2 x rows_sent
  // x D x bytes of a number, and a backward pass moves the same once more.
  int64_t rows_sent = 0;
  double entropy_sum =
      0;  // sum over tokens of the softmax entropy of the router, natural log; ReLU 0
  std::vector<int64_t> tokens_per_expert;  // [E] rows of each expert (IR and FR included)
  // [E] tokens with the expert among their first k choices, before capacity; empty without a bias.
  std::vector<int64_t> requests_per_expert;
  std::vector<int64_t> rank_dropped;  // [W] dropped requests of the tokens of each logical rank
  std::vector<int64_t> rank_ir;       // [W] IR tokens of each

  void add(const CounterValues& other);
  int64_t rows() const;               // sum over experts
  double experts_per_token() const;   // rows / tokens; 0 without tokens
  double load_max_over_mean() const;  // 1 = balanced; 0 without rows
  int64_t dead_experts() const;       // experts without a row
  double sparsity() const;            // 1 - rows / (tokens * E); 0 without tokens
};

// All numbers of the counts in a fixed order, exact, to be added up elsewhere; and back: of E
// experts and W logical ranks.
std::vector<double> numbers_of(const CounterValues& values);
CounterValues counters_from(const std::vector<double>& numbers, int64_t experts, int64_t ranks);

// The same, still on the device where it was counted.
struct Counters {
  CounterValues host_values;    // what the host knows without looking: tokens, k requests, slots, W
  bool tokens_request = false;  // of the family (router.h), as is the next
  bool has_slots = false;
  at::Tensor tokens_per_expert;         // [E] i64
  at::Tensor counted;                   // [(W + 1) * 8 + 2] i64: kernels/ops/plan_weights.h
  at::Tensor requests_per_expert = {};  // [E] i64, undefined without a bias
};

// Counts a finished plan.
Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings);
// The same of a plan of which the kernels of a GPU have made `counted`.
Counters counters_of(const RouteInput& input, const Plan& plan, const RouterSettings& settings,
                     const at::Tensor& counted);

// One transfer for all layers.
std::vector<CounterValues> read_counters(const std::vector<Counters>& counters);

// [T, 3 + E] i64: rows that each token has by its first k choices, by fill-in (0 or 1) and by IR (0
// or 1), then its rows of each expert. For statistics by token or by source; not part of a normal
// forward.
at::Tensor rows_of_tokens(const RouteInput& input, const Plan& plan);

// The largest and the mean entry of a rank's counts; 0 without ranks.
struct RankSpread {
  int64_t max = 0;
  double mean = 0;
};
RankSpread spread_of(const std::vector<int64_t>& counts);

// A model's layers together: counts summed (its tokens_per_expert mean nothing: expert 0 of
// one layer is no kin of expert 0 of another), the worst load and all dead experts.
struct CounterTotal {
  CounterValues sum;
  int64_t tokens = 0;        // that every layer saw; sum.tokens counts them once a layer
  double worst_load = 0;     // the largest load_max_over_mean of a layer
  int64_t dead_experts = 0;  // over all layers
  double sparsity = 0;       // mean over layers
};
CounterTotal total_of(const std::vector<CounterValues>& layers);

}  // namespace moe::route
