#pragma once
// What routing did, counted on the device and read back once a step (SPEC section 13). Padding
// tokens are never counted.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "core/route/rule.h"

namespace moe::route {

// One layer, one group of tokens; tensors on the device of the layer's input.
struct Counters {
  torch::Tensor scalars;  // [kCounterScalars] f64, in the order of CounterValues' fields
  torch::Tensor load;     // [E] i64, rows of each expert (IR and FR included)
};

// The same on the host; add() sums over micro-batches, or over layers for a total. Routers without
// capacity (top-p, ReLU) request exactly the rows they get and have no slots.
struct CounterValues {
  int64_t tokens = 0;
  int64_t requests = 0, dropped_requests = 0;  // of the first k choices
  int64_t dropped_tokens = 0;                  // no expert accepted them (IR does not count)
  int64_t unserved_tokens = 0;                 // no expert at all: they pass by the residual
  int64_t fr_requests = 0, fr_filled = 0, fr_rejected = 0;
  int64_t ir_tokens = 0;
  int64_t slots_total = 0, slots_used = 0, padding = 0;
  double entropy_sum =
      0;  // sum over tokens of the softmax entropy of the router, natural log; ReLU 0
  std::vector<int64_t> load;

  void add(const CounterValues& other);
  int64_t rows() const;               // sum of load
  double experts_per_token() const;   // rows / tokens; 0 without tokens
  double load_max_over_mean() const;  // 1 = balanced; 0 without rows
  int64_t dead_experts() const;       // experts without a row
  double sparsity() const;            // 1 - rows / (tokens * E); 0 without tokens
};

inline constexpr int64_t kCounterScalars = 13;

// Counts a finished plan.
Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings);

// One transfer for all layers.
std::vector<CounterValues> read_counters(const std::vector<Counters>& counters);

}  // namespace moe::route
