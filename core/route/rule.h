#pragma once
// The one interface of routing: a router is a list of rules, each a pure function from a plan to a
// better plan. T tokens, E experts, W logical ranks, k experts per token (core/README.md).

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/route/plan.h"
#include "core/route/router_settings.h"

namespace moe::route {

// The tokens that are routed together: one micro-batch, or one evaluation group (SPEC sections 1,
// 12).
struct RoutingGroup {
  std::vector<int64_t> home;  // [T] logical rank of each token, -1 = padding
  int64_t ranks = 1;          // W
};

// SPEC D1 for T valid tokens on W logical ranks: token v goes to rank floor(v * W / T).
RoutingGroup spread_over_ranks(int64_t tokens, int64_t ranks);

// SPEC section 2: slots of one (source rank, expert): max(1, ceil(CF * T_r / E - 1e-6)), 0 without
// tokens. `capacity_factor` empty = dropless, T_r slots.
int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens, int64_t experts);

// What every rule may read. Nothing here carries a gradient.
struct RouteInput {
  at::Tensor logits, scores;  // [T, E] f32; in a token order by logits, between tokens by scores
  at::Tensor ranked;          // [T, E] i64: experts of each token by logit, ties: lower index first
  at::Tensor home;            // [T] i64: logical rank, W for padding
  std::vector<int64_t> capacity;     // [W] slots an expert takes from that rank
  std::vector<int64_t> rank_tokens;  // [W] T_r
  int64_t ranks = 1;                 // W
  int64_t k = 1;                     // choices a token may make; top-p and ReLU: at most so many
  bool dropless = false;             // no capacity can refuse anything

  int64_t tokens() const { return logits.size(0); }
  int64_t experts() const { return logits.size(1); }
  int64_t valid_tokens = 0;
};

// Checks the group (homes within -1..W-1, W divides E) and gathers what rules read. `scores` [T,
// E].
RouteInput make_input(const at::Tensor& logits, const at::Tensor& scores,
                      const RouterSettings& settings, const RoutingGroup& group);

using Rule = std::function<Plan(const RouteInput&, const Plan&)>;

// ------------------------------------------------------------------------------------- the rules
// Each has a file of its own.

// The requests of every token: its k best experts, in slot order (choice-major D5, or by score).
Rule top_k(SlotOrder order);
// Refuses the requests beyond the capacity of their (rank, expert); they go to the overflow.
Plan within_capacity(const RouteInput& input, const Plan& plan);
// FR: the (k+1)-th choice of every token competes for the slots that are left (SPEC section 4).
Plan fill_in(const RouteInput& input, const Plan& plan);
// IR: a token with fewer than k experts goes to the best expert of its own rank (SPEC section 3).
Plan intra_gpu(const RouteInput& input, const Plan& plan);
// The shortest prefix of the ranked experts whose probability reaches p (SPEC section 8).
Rule top_p(double p);
// Every expert with a positive logit (SPEC section 9).
Plan positive(const RouteInput& input, const Plan& plan);

}  // namespace moe::route
