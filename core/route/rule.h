#pragma once
// The one interface of routing: a router is a list of rules, each a pure function from a plan to a better plan.

#include <torch/types.h>

#include <functional>
#include <vector>

#include "core/route/plan.h"
#include "core/route/router_settings.h"

namespace moe::route {

// The tokens that are routed together: one micro-batch, or one evaluation group (SPEC sections 1 and 12).
struct RoutingGroup {
  std::vector<int64_t> home;  // [T] logical rank of each token, -1 = padding
  int64_t ranks = 1;          // W
};

// SPEC D1 for T valid tokens on W logical ranks: token v goes to rank floor(v * W / T).
RoutingGroup spread_over_ranks(int64_t tokens, int64_t ranks);

// SPEC section 2: slots of one (source rank, expert). `capacity_factor` empty = dropless.
int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens, int64_t experts);

struct RouteInput {
  torch::Tensor logits, scores;   // [T, E] f32, detached; in a token order by logits, between tokens by scores (D6)
  std::vector<int64_t> home;      // [T] logical rank, -1 = padding
  std::vector<int64_t> capacity;  // [W] slots an expert takes from that rank
  int64_t k = 1;
};

using Rule = std::function<Plan(const RouteInput&, Plan)>;

}  // namespace moe::route
