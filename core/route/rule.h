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

// The tokens that are routed together: one micro-batch, or one evaluation group.
struct RoutingGroup {
  std::vector<int64_t> home;  // [T] logical rank of each token, -1 = padding
  int64_t ranks = 1;          // W
  // Losses that a run asks for besides those of its router (losses.h); no decision reads them.
  bool wants_z_loss = false;
  // [T] the sequence of each token, from 0, where balance within sequences is asked for.
  std::optional<std::vector<int64_t>> sequence = {};
};

// The homes of T valid tokens on W logical ranks: token v lives on rank floor(v * W / T)
// (README.md, "Ranks are logical").
RoutingGroup spread_over_ranks(int64_t tokens, int64_t ranks);

// Slots of one (source rank, expert): max(1, ceil(CF * T_r / E - 1e-6)), 0 without tokens.
// `capacity_factor` empty = dropless, T_r slots (README.md, "Capacity is counted per source rank").
int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens, int64_t experts);

// What every rule may read. Nothing here carries a gradient.
struct RouteInput {
  at::Tensor logits, scores;  // [T, E] f32; in a token order by logits, between tokens by scores
  at::Tensor by_logit;        // [T, E] i64: experts of each token by logit, ties: lower index first
  at::Tensor ranked;  // [T, E] i64: the order in which it chooses: by_logit where no bias is
  at::Tensor home;    // [T] i64: logical rank, W for padding
  std::vector<int64_t> capacity;     // [W] slots an expert takes from that rank
  std::vector<int64_t> rank_tokens;  // [W] T_r
  int64_t ranks = 1;                 // W
  int64_t k = 1;                     // choices of a token at most (RouterFamily::most_choices)
  bool dropless = false;             // no capacity can refuse anything
  bool wants_z_loss = false;
  at::Tensor sequence;    // [T] i64: as in RoutingGroup; undefined where nobody asks
  int64_t sequences = 0;  // B, sequences at most

  int64_t tokens() const { return logits.size(0); }
  int64_t experts() const { return logits.size(1); }
  int64_t valid_tokens = 0;
};

// Checks the group (homes within -1..W-1, W divides E) and gathers what rules read. `scores` [T,
// E]. `bias` [E] f32, of routers that have one (README.md, "Balance by bias"); undefined is zero.
RouteInput make_input(const at::Tensor& logits, const at::Tensor& scores,
                      const RouterSettings& settings, const RoutingGroup& group,
                      const at::Tensor& bias = {});

using Rule = std::function<Plan(const RouteInput&, const Plan&)>;

// ------------------------------------------------------------------------------------- the rules
// Those that make another rule's plan better, each in a file of rules/. The rule that a family
// begins with stands in its own file (routers/).

// Refuses the requests beyond the capacity of their (rank, expert); they go to the overflow.
Plan within_capacity(const RouteInput& input, const Plan& plan);
// FR: the (k+1)-th choice of every token competes for the slots that are left.
Plan fill_in(const RouteInput& input, const Plan& plan);
// IR: a token with fewer than k experts goes to the best expert of its own rank.
Plan intra_gpu(const RouteInput& input, const Plan& plan);

}  // namespace moe::route
